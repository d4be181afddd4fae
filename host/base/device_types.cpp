// The table of device types, and the drivers of accelerators. The drivers are opened by dlopen, so that the program
// starts without them and needs none of their headers.
#include "host/base/device_types.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "chassis/tensor.h"

namespace chassis {
namespace {

constexpr const char* kCudaDriver = "libcuda.so.1";
constexpr const char* kCudaTorch = "libtorch_cuda.so";

// A function of a library that is opened if necessary; NULL without the library or the function.
template <typename Function>
Function function_of(const char* library, const char* name) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return opened ? reinterpret_cast<Function>(dlsym(opened, name)) : nullptr;
}

// As counted by the driver, which reads CUDA_VISIBLE_DEVICES. Occupies no GPU.
int num_visible_cuda() {
  const auto init = function_of<int (*)(unsigned)>(kCudaDriver, "cuInit");
  const auto count = function_of<int (*)(int*)>(kCudaDriver, "cuDeviceGetCount");
  int num_devices = 0;
  const bool counted = init && count && init(0) == 0 && count(&num_devices) == 0;
  return counted ? num_devices : 0;
}

// The driver's handle of a device.
std::optional<int> cuda_ordinal(int index) {
  const auto get = function_of<int (*)(int*, int)>(kCudaDriver, "cuDeviceGet");
  int ordinal = 0;
  if (!get || get(&ordinal, index) != 0) return std::nullopt;
  return ordinal;
}

std::string cuda_device_name(int index) {
  const auto get_name = function_of<int (*)(char*, int, int)>(kCudaDriver, "cuDeviceGetName");
  const std::optional<int> ordinal = cuda_ordinal(index);
  char name[256] = {};
  return ordinal && get_name && get_name(name, sizeof name - 1, *ordinal) == 0 ? name : "";
}

std::optional<DeviceVersions> cuda_versions(int index) {
  constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CUdevice_attribute
  const auto get_attribute = function_of<int (*)(int*, int, int)>(kCudaDriver, "cuDeviceGetAttribute");
  const std::optional<int> ordinal = cuda_ordinal(index);
  int major = 0, minor = 0;
  if (!ordinal || !get_attribute || get_attribute(&major, kCapabilityMajor, *ordinal) != 0 ||
      get_attribute(&minor, kCapabilityMinor, *ordinal) != 0)
    return std::nullopt;
  const auto get_driver = function_of<int (*)(int*)>(kCudaDriver, "cuDriverGetVersion");
  // Found in the run-time library that LibTorch's library needs; it answers without a device.
  const auto get_toolkit = function_of<int (*)(int*)>(kCudaTorch, "cudaRuntimeGetVersion");
  int driver = 0, toolkit = 0;
  if (!get_driver || get_driver(&driver) != 0 || !get_toolkit || get_toolkit(&toolkit) != 0) return std::nullopt;
  return DeviceVersions{toolkit / 1000, std::to_string(10 * major + minor), driver / 1000};
}

std::optional<uint64_t> cuda_shared_memory_limit(int index) {
  constexpr int kMaxSharedPerBlockOptin = 97;  // CUdevice_attribute
  if (num_visible_cuda() <= index) return std::nullopt;
  const auto get_attribute = function_of<int (*)(int*, int, int)>(kCudaDriver, "cuDeviceGetAttribute");
  const std::optional<int> ordinal = cuda_ordinal(index);
  int bytes = 0;
  if (!ordinal || !get_attribute || get_attribute(&bytes, kMaxSharedPerBlockOptin, *ordinal) != 0 || bytes <= 0)
    return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

// NVML counts all GPUs of the machine, so the GPU is found by its PCI bus id.
std::optional<double> cuda_temperature(int index) {
  static void* const driver = dlopen(kCudaDriver, RTLD_NOW | RTLD_LOCAL);
  static void* const nvml = driver ? dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!nvml) return std::nullopt;
  const auto bus_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetPCIBusId"));
  const auto init = reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto read = reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(nvml, "nvmlDeviceGetTemperature"));
  constexpr int kOnTheChip = 0;  // NVML_TEMPERATURE_GPU
  char bus[32] = {};
  void* device = nullptr;
  unsigned celsius = 0;
  if (!bus_of || !init || !find || !read || num_visible_cuda() <= index) return std::nullopt;
  static const bool has_started = init() == 0;
  if (!has_started || bus_of(bus, sizeof bus, index) != 0 || find(bus, &device) != 0) return std::nullopt;
  return read(device, kOnTheChip, &celsius) == 0 ? std::optional<double>(celsius) : std::nullopt;
}

// A target that kernels were compiled for: "90", "90a", "100f" or "ptx80".
struct CudaTarget {
  int sm = 0;          // compute capability, 90 for 9.0
  char suffix = '\0';  // 'a': only that device; 'f': its family
  bool is_ptx = false;
};

std::optional<CudaTarget> parse_cuda_target(std::string_view text) {
  CudaTarget target;
  constexpr std::string_view kPtx = "ptx";
  if ((target.is_ptx = text.starts_with(kPtx))) text.remove_prefix(kPtx.size());
  if (text.ends_with('a') || text.ends_with('f')) {
    target.suffix = text.back();
    text.remove_suffix(1);
  }
  if (text.empty() || text.size() > 9) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), target.sm);
  if (error != std::errc() || end != text.data() + text.size() || target.sm <= 0) return std::nullopt;
  return target;
}

std::string read_cuda_target(std::string_view text) {
  const std::optional<CudaTarget> target = parse_cuda_target(text);
  if (!target) return "";
  return (target->is_ptx ? "ptx" : "") + std::to_string(target->sm) +
         (target->suffix ? std::string(1, target->suffix) : "");
}

// Code for 8.0 runs on 8.6 but not on 9.0; the driver compiles PTX for all later devices. Source: CUDA Programming
// Guide, "Binary Compatibility", "Feature-Specific" and "Family-Specific" targets.
bool cuda_target_runs_on(std::string_view text, std::string_view architecture) {
  const std::optional<CudaTarget> target = parse_cuda_target(text), device = parse_cuda_target(architecture);
  if (!target || !device) return false;
  if (target->suffix == 'a') return device->sm == target->sm;
  if (target->is_ptx && target->suffix == '\0') return device->sm >= target->sm;
  return device->sm / 10 == target->sm / 10 && device->sm >= target->sm;
}

constexpr AcceleratorSpec kCuda = {.driver_library = kCudaDriver,
                                   .torch_library = kCudaTorch,
                                   .torch_libraries = {"libtorch_cuda", "libc10_cuda", "libnccl"},
                                   .num_visible = num_visible_cuda,
                                   .device_name = cuda_device_name,
                                   .versions = cuda_versions,
                                   .shared_memory_limit = cuda_shared_memory_limit,
                                   .temperature = cuda_temperature,
                                   .toolkit_key = "cuda",
                                   .toolkit_form = "a CUDA major version such as 13",
                                   .targets_key = "sm",
                                   .targets_form = "compute capabilities such as 80,90a,100f,ptx90",
                                   .runtime_library = "libcudart.so",
                                   .read_target = read_cuda_target,
                                   .runs_on = cuda_target_runs_on};

constexpr DeviceSpec kSpecs[] = {{.id = CHASSIS_DEVICE_CPU,
                                  .name = "cpu",
                                  .title = "the CPU",
                                  .foreign_name = "",
                                  .can_run = true,
                                  .has_index = false,
                                  .has_memory = true,
                                  .has_own_memory = false,
                                  .has_streams = false,
                                  .pins_host_memory = false,
                                  .has_bf16 = false},
                                 {.id = CHASSIS_DEVICE_CUDA,
                                  .name = "cuda",
                                  .title = "CUDA",
                                  .foreign_name = "gpu",
                                  .can_run = true,
                                  .has_index = true,
                                  .has_memory = true,
                                  .has_own_memory = true,
                                  .has_streams = true,
                                  .pins_host_memory = true,
                                  .has_bf16 = true,
                                  .accelerator = &kCuda},
                                 // Shapes without memory, see host/service/meta_memory.hpp.
                                 {.id = CHASSIS_DEVICE_META,
                                  .name = "meta",
                                  .title = "meta",
                                  .foreign_name = "",
                                  .can_run = false,
                                  .has_index = false,
                                  .has_memory = false,
                                  .has_own_memory = false,
                                  .has_streams = false,
                                  .pins_host_memory = false,
                                  .has_bf16 = false}};

}  // namespace

std::span<const DeviceSpec> device_specs() { return kSpecs; }

const DeviceSpec* find_device_spec(uint32_t id) {
  const auto* const found = std::ranges::find(kSpecs, id, &DeviceSpec::id);
  return found == std::end(kSpecs) ? nullptr : found;
}

const DeviceSpec* device_spec_named(std::string_view setting) {
  for (const DeviceSpec& spec : kSpecs) {
    if (!spec.can_run) continue;
    const bool has_index =
        spec.has_index && setting.starts_with(spec.name) && setting.substr(spec.name.size()).starts_with(':');
    if (setting == spec.name || has_index) return &spec;
  }
  return nullptr;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const DeviceSpec& spec : kSpecs)
    if (spec.can_run) names.emplace_back(spec.name);
  return names;
}

std::string device_titles(bool (*is_meant)(const DeviceSpec&), std::string_view last_separator) {
  std::string text;
  const auto num = std::ranges::count_if(kSpecs, is_meant);
  int64_t i = 0;
  for (const DeviceSpec& spec : kSpecs) {
    if (!is_meant(spec)) continue;
    if (i > 0) text += i + 1 == num ? last_separator : ", ";
    text += spec.title;
    ++i;
  }
  return text;
}

}  // namespace chassis
