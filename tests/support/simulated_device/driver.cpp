// A CUDA driver with simulated devices of compute capability 9.0. It answers questions and runs nothing.
#include <cstdio>

#include "tests/support/simulated_device/settings.hpp"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidDevice = 101;  // CUresult

bool is_device(int device) { return device >= 0 && device < simulated_device::num_devices(); }

// CUdevice_attribute.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedMemoryPerBlockOptin = 97;

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = simulated_device::num_devices();
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return is_device(ordinal) ? kSuccess : kInvalidDevice;
}

int cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, static_cast<size_t>(size), "Simulated");
  return is_device(device) ? kSuccess : kInvalidDevice;
}

int cuDeviceGetPCIBusId(char* id, int size, int device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02x:00.0", static_cast<unsigned>(device) & 0xffu);
  return is_device(device) ? kSuccess : kInvalidDevice;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = simulated_device::settings().memory_bytes;
  return is_device(device) ? kSuccess : kInvalidDevice;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_device(device)) return kInvalidDevice;
  switch (attribute) {
    case kMultiprocessors:
      *value = 132;
      return kSuccess;
    case kMajor:
      *value = 9;
      return kSuccess;
    case kMinor:
      *value = 0;
      return kSuccess;
    case kSharedMemoryPerBlockOptin:
      *value = 232448;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

}  // extern "C"
