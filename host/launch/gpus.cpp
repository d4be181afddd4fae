// Loads the CUDA driver by dlopen, so that the program starts without one.
#include "host/launch/gpus.hpp"

#include <dlfcn.h>

namespace chassis {

int num_visible_gpus() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 0;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int num_gpus = 0;
  const bool counted = init && count && init(0) == 0 && count(&num_gpus) == 0;
  return counted ? num_gpus : 0;
}

}  // namespace chassis
