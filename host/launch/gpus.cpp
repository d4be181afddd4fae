// Loads the CUDA driver and NVML by dlopen, so that the program starts without them.
#include "host/launch/gpus.hpp"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/base/end_process.hpp"

namespace chassis {

int num_visible_gpus_by_copy() {
  const pid_t copy = ::fork();
  if (copy == 0) end_process(num_visible_gpus());
  int status = 0;
  return copy > 0 && ::waitpid(copy, &status, 0) == copy && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int num_visible_gpus() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int num_gpus = 0;
  const bool counted = init && count && init(0) == 0 && count(&num_gpus) == 0;
  return counted ? num_gpus : 0;
}

// NVML counts all GPUs of the machine, so the GPU is found by its PCI bus id.
std::optional<double> gpu_temperature(int index) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
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
  if (!bus_of || !init || !find || !read || num_visible_gpus() <= index) return std::nullopt;
  static const bool has_started = init() == 0;
  if (!has_started || bus_of(bus, sizeof bus, index) != 0 || find(bus, &device) != 0) return std::nullopt;
  return read(device, kOnTheChip, &celsius) == 0 ? std::optional<double>(celsius) : std::nullopt;
}

}  // namespace chassis
