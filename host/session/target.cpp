// Chooses the device, the compute dtype and the number of threads of this rank.
#include "host/session/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "host/base/control_groups.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/launch/gpus.hpp"
#include "host/service/threads.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

Dtype dtype_from_setting(const Setting<DtypeChoice>& setting, Device device) {
  if (setting == DtypeChoice::kAuto) return device.type == Device::Type::kCuda ? Dtype::bf16 : Dtype::f32;
  return float_dtype(to_text(*setting), setting.key());
}

// Libraries silently ignore, clamp or truncate some values of OMP_NUM_THREADS.
void use_omp_num_threads(const std::string& given, const World& world) {
  const std::optional<int> chosen = first_num_threads(given);
  set_threads(chosen.value_or(world.num_cores()));
  if (!chosen && world.launch().local_rank == 0)
    counted_warning("OMP_NUM_THREADS",
                    fmt::format("OMP_NUM_THREADS={} is not a number of threads, 1 to {}: one for each of {} cores is "
                                "used instead; run.threads sets another number",
                                printable(given), kMaxThreads, world.num_cores()));
  if (world.rank() == 0 && world.launch().source == "torchrun" && given == "1" && world.num_cores() > 1)
    log::info("torchrun sets OMP_NUM_THREADS=1 if it is not set; run.threads = {} uses all cores of a rank",
              world.num_cores());
}

// Each rank of a machine uses its own GPU, unless the launcher makes only one visible to it.
std::string device_of_rank(DeviceChoice choice, int local_rank) {
  const std::string same(to_text(choice));
  if (local_rank == 0 || num_visible_gpus() < 2) return same;
  if (choice != DeviceChoice::kCuda && !(choice == DeviceChoice::kAuto && load_cuda().empty())) return same;
  return "cuda:" + std::to_string(local_rank);
}

// `name` is the value of run.device on this rank.
Device device_from(const Settings::Run& run, std::string_view name) {
  try {
    return chassis::choose_device(name);
  } catch (const Error& error) {
    throw error_at(run.device, error);
  }
}

}  // namespace

bool may_run_on_cuda(const Settings::Run& run, const Target& target) {
  if (target.assumed_device) return target.assumed_device->type == Device::Type::kCuda;
  if (target.without_device) return target.assume_configured_device && run.device == DeviceChoice::kCuda;
  return run.device != DeviceChoice::kCpu && load_cuda().empty();
}

std::function<std::optional<CudaVersions>()> cuda_versions_of(const Settings::Run& run, const Target& target) {
  if (target.assumed_device && target.assumed_device->type == Device::Type::kCuda)
    return [device = *target.assumed_device] { return cuda_versions(device); };
  if (target.without_device || run.device == DeviceChoice::kCpu) return {};
  return [&run]() -> std::optional<CudaVersions> {
    if (!load_cuda().empty()) return std::nullopt;
    return cuda_versions(device_from(run, to_text(*run.device)));
  };
}

Device choose_device(const Settings::Run& run, const Target& target, const World& world) {
  if (target.assumed_device) return *target.assumed_device;
  if (!target.without_device) return device_from(run, device_of_rank(run.device, world.launch().local_rank));
  const bool assumes_cuda = target.assume_configured_device && run.device == DeviceChoice::kCuda;
  return assumes_cuda ? Device{Device::Type::kCuda, 0} : Device{};
}

int64_t max_rank_threads() { return std::max<int64_t>(64, 4 * int64_t{std::thread::hardware_concurrency()}); }

void set_rank_threads(const Settings::Run& run, const World& world) {
  if (const int64_t threads = run.threads; threads > max_rank_threads()) {
    counted_warning("run.threads", fmt::format("run.threads = {}, and this machine has {} cores: {} threads are used",
                                               threads, std::thread::hardware_concurrency(), max_rank_threads()));
    set_threads(static_cast<int>(max_rank_threads()));
  } else if (threads > 0)
    set_threads(static_cast<int>(threads));
  else if (const std::string given = omp_num_threads(); !given.empty())
    use_omp_num_threads(given, world);
  else if (world.size() > 1 || world.num_cores() < num_threads())
    // By default LibTorch starts one thread per core on every rank, even where a control group allows fewer. A
    // rehearsal is one process, which keeps its rank's number of threads.
    set_threads(world.num_cores());
}

int64_t planned_rank_threads(const Settings::Run& run, int64_t num_ranks) {
  if (run.threads > 0) return std::min<int64_t>(run.threads, max_rank_threads());
  return first_num_threads(omp_num_threads())
      .value_or(static_cast<int>(std::max<int64_t>(1, usable_threads() / num_ranks)));
}

Dtype compute_dtype(const Settings::Precision& precision, const Target& target, Device device) {
  const Dtype dtype = dtype_from_setting(precision.compute, device);
  if (dtype == Dtype::bf16 && !target.without_device && !has_fast_bf16(device))
    counted_warning("slow bf16",
                    "bf16 matrix products are up to 8 times slower than fp32 on this processor, which has "
                    "neither AMX nor AVX512-BF16; precision.compute = \"fp32\" is faster");
  return dtype;
}

}  // namespace chassis
