// Chooses the device, the compute dtype and the number of threads of this rank.
#include "host/session/target.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <thread>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/service/threads.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

Dtype dtype_from_setting(const Setting<DtypeChoice>& setting, Device device) {
  if (setting == DtypeChoice::kAuto) return device.spec().has_bf16 ? Dtype::bf16 : Dtype::f32;
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
std::string device_of_rank(const std::string& setting, int local_rank) {
  if (local_rank == 0) return setting;
  const DeviceSpec* const spec = setting == "auto" ? usable_accelerator() : device_spec_named(setting);
  if (!spec || !spec->accelerator || setting.find(':') != std::string::npos || spec->accelerator->num_visible() < 2)
    return setting;
  return std::string(spec->name) + ":" + std::to_string(local_rank);
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

bool may_run_on(const DeviceSpec& accelerator, const Settings::Run& run, const Target& target) {
  if (target.assumed_device) return &target.assumed_device->spec() == &accelerator;
  const bool is_named = device_spec_named(*run.device) == &accelerator;
  if (target.without_device) return target.assume_configured_device && is_named;
  return run.device == "auto" ? usable_accelerator() == &accelerator
                              : is_named && load_device_type(accelerator).empty();
}

std::function<std::optional<DeviceVersions>(const DeviceSpec&)> device_versions_of(const Settings::Run& run,
                                                                                   const Target& target) {
  const auto versions_of = [](Device device, const DeviceSpec& spec) {
    return &device.spec() == &spec ? device_versions(device) : std::nullopt;
  };
  if (target.assumed_device && target.assumed_device->spec().accelerator)
    return [versions_of, device = *target.assumed_device](const DeviceSpec& spec) { return versions_of(device, spec); };
  if (target.without_device) return {};
  if (const DeviceSpec* const named = device_spec_named(*run.device); named && !named->accelerator) return {};
  return [versions_of, &run](const DeviceSpec& spec) -> std::optional<DeviceVersions> {
    if (!load_device_type(spec).empty()) return std::nullopt;
    return versions_of(device_from(run, *run.device), spec);
  };
}

Device choose_device(const Settings::Run& run, const Target& target, const World& world) {
  if (target.assumed_device) return *target.assumed_device;
  if (!target.without_device) return device_from(run, device_of_rank(run.device, world.launch().local_rank));
  const DeviceSpec* const named = target.assume_configured_device ? device_spec_named(*run.device) : nullptr;
  return named ? device_of(*named) : Device{};
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
  check_threads_start();
}

int64_t planned_rank_threads(const Settings::Run& run, int64_t num_ranks) {
  if (run.threads > 0) return std::min<int64_t>(run.threads, max_rank_threads());
  return default_num_threads(num_ranks);
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
