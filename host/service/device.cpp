// Devices, as LibTorch, the CUDA driver and /proc describe them.
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
#include <memory>
#include <mutex>

#include "host/base/control_groups.hpp"
#include "host/base/error.hpp"
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

// A function of the CUDA driver, looked up so that no CUDA header is needed; NULL without a driver.
template <typename Function>
Function driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver ? reinterpret_cast<Function>(dlsym(driver, name)) : nullptr;
}

// The driver's handle of a CUDA device.
std::optional<int> driver_device(Device device) {
  const auto get = driver_function<int (*)(int*, int)>("cuDeviceGet");
  int ordinal = 0;
  if (!get || get(&ordinal, device.index) != 0) return std::nullopt;
  return ordinal;
}

}  // namespace

std::string load_cuda() {
  static std::once_flag once;
  static auto* problem = new std::string;
  std::call_once(once, [] {
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
      *problem = "no CUDA driver: " + dl_error();
    } else if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL)) {
      *problem = "LibTorch's CUDA library cannot be loaded: " + dl_error();
    } else if (!at::globalContext().hasCUDA() || at::accelerator::deviceCount() == 0) {
      *problem = "no CUDA device is visible";
    }
  });
  return *problem;
}

Device choose_device(std::string_view setting) {
  if (setting == "cpu") return {};
  if (setting == "auto") return load_cuda().empty() ? Device{Device::Type::kCuda, 0} : Device{};
  if (setting == "cuda" || setting.starts_with("cuda:")) {
    int index = 0;
    if (setting.size() > 5) {
      const std::string number(setting.substr(5));
      char* end = nullptr;
      index = static_cast<int>(std::strtol(number.c_str(), &end, 10));
      if (*end || index < 0) throw config_error("run.device: \"" + std::string(setting) + "\" is not a device");
    }
    if (const std::string problem = load_cuda(); !problem.empty())
      throw config_error("run.device = \"" + std::string(setting) + "\": " + problem)
          .hint("set run.device = \"auto\" or \"cpu\"");
    if (const int count = at::accelerator::deviceCount(); index >= count)
      throw config_error("run.device = \"" + std::string(setting) + "\": this machine has " + std::to_string(count) +
                         " CUDA device(s)");
    return {Device::Type::kCuda, index};
  }
  throw config_error("run.device: \"" + std::string(setting) + "\" is not a device")
      .hint("use \"auto\", \"cpu\", \"cuda\" or \"cuda:<index>\"");
}

DeviceMemory device_memory(Device device) {
  if (device.type == Device::Type::kMeta) return {};
  if (device.type == Device::Type::kCpu) {
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
  if (device.type == Device::Type::kCuda)
    translate_errors([&] { at::accelerator::synchronizeDevice(static_cast<c10::DeviceIndex>(device.index)); });
}

std::string device_name(Device device) {
  if (device.type == Device::Type::kCpu) {
    const std::string model = proc_line("/proc/cpuinfo", "model name");
    return model.empty() ? "cpu" : model;
  }
  if (device.type == Device::Type::kCuda) {
    const auto get_name = driver_function<int (*)(char*, int, int)>("cuDeviceGetName");
    const std::optional<int> ordinal = driver_device(device);
    char name[256] = {};
    if (ordinal && get_name && get_name(name, sizeof name - 1, *ordinal) == 0) return name;
  }
  return device.text();
}

std::optional<CudaVersions> cuda_versions(Device device) {
  if (device.type != Device::Type::kCuda || !load_cuda().empty()) return std::nullopt;
  constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CUdevice_attribute
  const auto get_attribute = driver_function<int (*)(int*, int, int)>("cuDeviceGetAttribute");
  const std::optional<int> ordinal = driver_device(device);
  int major = 0, minor = 0;
  if (!ordinal || !get_attribute || get_attribute(&major, kCapabilityMajor, *ordinal) != 0 ||
      get_attribute(&minor, kCapabilityMinor, *ordinal) != 0)
    return std::nullopt;
  const auto get_version = driver_function<int (*)(int*)>("cuDriverGetVersion");
  int driver = 0;
  if (!get_version || get_version(&driver) != 0) return std::nullopt;
  return CudaVersions{static_cast<int>(at::globalContext().versionCUDART() / 1000), 10 * major + minor, driver / 1000};
}

uint64_t peak_resident_bytes() {
  return std::strtoull(proc_line("/proc/self/status", "VmHWM").c_str(), nullptr, 10) * 1024;
}

bool has_fast_bf16(Device device) {
  if (device.type == Device::Type::kCuda) return true;
  const std::string flags = " " + proc_line("/proc/cpuinfo", "flags") + " ";
  return flags.find(" amx_bf16 ") != std::string::npos || flags.find(" avx512_bf16 ") != std::string::npos;
}

}  // namespace chassis
