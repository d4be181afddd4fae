// Devices, as LibTorch, their drivers and /proc describe them.
#include "host/service/device.hpp"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <dlfcn.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host/base/control_groups.hpp"
#include "host/base/error.hpp"
#include "host/config/option.hpp"
#include "host/service/handle.hpp"
#include "host/service/host_memory.hpp"
#include "host/service/memory.hpp"
#include "host/service/memory_account.hpp"

namespace chassis {
namespace {

std::string dl_error() {
  const char* text = dlerror();
  return text ? text : "unknown reason";
}

std::string load_problem(const DeviceSpec& spec) {
  const std::string title(spec.title);
  if (!dlopen(spec.accelerator->driver_library, RTLD_NOW | RTLD_LOCAL)) return "no " + title + " driver: " + dl_error();
  if (!dlopen(spec.accelerator->torch_library, RTLD_NOW | RTLD_GLOBAL))
    return "LibTorch's " + title + " library cannot be loaded: " + dl_error();
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(torch_device_type(spec));
  if (!hooks.isAvailable() || at::accelerator::deviceCount() == 0) return "no " + title + " device is visible";
  return "";
}

// The values of run.device that choose_device accepts.
std::vector<std::string> device_settings() {
  std::vector<std::string> settings = {"auto"};
  for (const DeviceSpec& spec : device_specs()) {
    if (!spec.can_run) continue;
    settings.emplace_back(spec.name);
    if (spec.has_index) settings.push_back(std::string(spec.name) + ":<index>");
  }
  return settings;
}

}  // namespace

std::string load_device_type(const DeviceSpec& spec) {
  if (!spec.accelerator) return "";
  static std::mutex mutex;
  static auto* const problems = new std::map<uint32_t, std::string>;
  const std::lock_guard lock(mutex);
  auto found = problems->find(spec.id);
  if (found == problems->end()) found = problems->emplace(spec.id, load_problem(spec)).first;
  return found->second;
}

const DeviceSpec* usable_accelerator() {
  for (const DeviceSpec& spec : device_specs())
    if (spec.accelerator && load_device_type(spec).empty()) return &spec;
  return nullptr;
}

Device choose_device(std::string_view setting) {
  if (setting == "auto") {
    const DeviceSpec* const accelerator = usable_accelerator();
    return accelerator ? device_of(*accelerator) : Device{};
  }
  const std::string given = "\"" + std::string(setting) + "\"";
  const DeviceSpec* const spec = device_spec_named(setting);
  if (!spec)
    throw config_error("run.device: " + given + " is not a device").hint("use " + choices_text(device_settings()));
  int index = 0;
  if (setting.size() > spec->name.size()) {
    const std::string number(setting.substr(spec->name.size() + 1));
    char* end = nullptr;
    index = static_cast<int>(std::strtol(number.c_str(), &end, 10));
    if (*end || index < 0) throw config_error("run.device: " + given + " is not a device");
  }
  if (!spec->accelerator) return device_of(*spec, index);
  if (const std::string problem = load_device_type(*spec); !problem.empty())
    throw config_error("run.device = " + given + ": " + problem).hint("set run.device = \"auto\" or \"cpu\"");
  if (const int count = at::accelerator::deviceCount(); index >= count)
    throw config_error("run.device = " + given + ": this machine has " + std::to_string(count) + " " +
                       std::string(spec->title) + " device(s)");
  return device_of(*spec, index);
}

DeviceMemory device_memory(Device device) {
  const DeviceSpec& spec = device.spec();
  if (!spec.has_memory) return {};
  if (!spec.has_own_memory) {
    const MemoryUsage usage = memory_usage();
    DeviceMemory memory{usage.live_bytes, usage.system_bytes, usage.peak_bytes};
    HostMemory host = host_memory();
    memory.free_bytes = host.free_bytes;
    memory.total_bytes = host.total_bytes;
    memory.free_swap_bytes = host.free_swap_bytes;
    memory.limited_by = std::move(host.limited_by);
    return memory;
  }
  return translate_errors([&] {
    const auto index = static_cast<c10::DeviceIndex>(device.index);
    const auto stats = at::accelerator::getDeviceStats(index);
    const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(index);
    const auto& active = stats.active_bytes[0];
    return DeviceMemory{static_cast<uint64_t>(active.current),
                        static_cast<uint64_t>(stats.reserved_bytes[0].current),
                        static_cast<uint64_t>(active.peak),
                        free_bytes,
                        total_bytes,
                        static_cast<uint64_t>(stats.num_ooms)};
  });
}

Tensor pinned_tensor(std::span<const int64_t> sizes, Dtype dtype) {
  struct Block {
    at::Tensor tensor;
    MemoryCharge charge;
  };
  return translate_errors([&] {
    const at::IntArrayRef shape(sizes.data(), sizes.size());
    const auto options = at::dtype(scalar_type(dtype));
    at::Tensor tensor = at::empty(shape, options.pinned_memory(true));
    const auto category = static_cast<MemoryCategory>(current_memory_label().category);
    const auto block = std::shared_ptr<Block>(new Block{tensor, {tensor.nbytes(), category}});
    return Tensor::adopt(new_handle(at::from_blob(tensor.data_ptr(), shape, [block](void*) {}, options)));
  });
}

void synchronize(Device device) {
  if (device.spec().has_streams)
    translate_errors([&] { at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(device.index)); });
}

std::string device_name(Device device) {
  if (device.type == Device::Type::kCpu) {
    const std::string model = proc_line("/proc/cpuinfo", "model name");
    return model.empty() ? "cpu" : model;
  }
  const AcceleratorSpec* const accelerator = device.spec().accelerator;
  const std::string name = accelerator ? accelerator->device_name(device.index) : "";
  return name.empty() ? device.text() : name;
}

std::optional<DeviceVersions> device_versions(Device device) {
  const DeviceSpec& spec = device.spec();
  if (!spec.accelerator || !load_device_type(spec).empty()) return std::nullopt;
  return spec.accelerator->versions(device.index);
}

std::optional<uint64_t> shared_memory_limit(Device device) {
  const AcceleratorSpec* const accelerator = device.spec().accelerator;
  return accelerator ? accelerator->shared_memory_limit(device.index) : std::nullopt;
}

uint64_t peak_resident_bytes() {
  return std::strtoull(proc_line("/proc/self/status", "VmHWM").c_str(), nullptr, 10) * 1024;
}

bool has_fast_bf16(Device device) {
  if (device.spec().has_bf16) return true;
  const std::string flags = " " + proc_line("/proc/cpuinfo", "flags") + " ";
  return flags.find(" amx_bf16 ") != std::string::npos || flags.find(" avx512_bf16 ") != std::string::npos;
}

}  // namespace chassis
