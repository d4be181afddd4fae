// Counts the bytes that tensors of the device "meta" would have, so that a plan can run the program's own code and read
// its memory use from the counters. meta:0 stands for a device, meta:1 for its host's memory.
#pragma once

#include "host/service/memory_usage.hpp"
#include "host/service/tensor_device.hpp"

namespace chassis {

inline constexpr Device kMetaDevice{Device::Type::kMeta, 0};
inline constexpr Device kMetaHost{Device::Type::kMeta, 1};

// Installs the counting allocator in LibTorch. Call it before the first tensor that is to be counted. Later calls do
// nothing.
void install_meta_allocator();

// The memory that meta tensors would take, counted under the tags of the thread that made them.
MemoryUsage meta_memory_usage(Device device);
// Sets the peaks to the bytes that are live now.
void reset_peak_meta_memory();

// In its scope, meta tensors that this thread makes are counted on this device. No effect for other device types.
class MetaDeviceScope {
 public:
  explicit MetaDeviceScope(Device device);
  ~MetaDeviceScope();
  MetaDeviceScope(const MetaDeviceScope&) = delete;
  MetaDeviceScope& operator=(const MetaDeviceScope&) = delete;

 private:
  int previous_;
};

// Like retag_memory; returns false if the tensor is not a counted meta tensor.
bool retag_meta_memory(chassis_tensor_t tensor, MemoryCategory category);

}  // namespace chassis
