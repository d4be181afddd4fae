// Tensors of the device "meta" have shapes and no bytes; here they are counted as if they had, so that a plan can run
// the program's own code and read its memory off the counters. meta:0 stands for a device, meta:1 for the memory of its
// host.
#pragma once

#include "host/service/memory.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

inline constexpr Device kMetaDevice{Device::Type::kMeta, 0};
inline constexpr Device kMetaHost{Device::Type::kMeta, 1};

// Makes the counter LibTorch's meta allocator; once, before the first tensor that is to be counted. Later calls do
// nothing.
void install_meta_allocator();

// What meta tensors would take, by the tags of the thread that made them.
MemoryUsage meta_memory_usage(Device device);
// Peaks start again from what is live now.
void reset_peak_meta_memory();

// While it lives, meta tensors that this thread makes lie there; nothing for other devices.
class MetaPlace {
 public:
  explicit MetaPlace(Device device);
  ~MetaPlace();
  MetaPlace(const MetaPlace&) = delete;
  MetaPlace& operator=(const MetaPlace&) = delete;

 private:
  int previous_;
};

// As retag_memory; false if the tensor is not a counted meta tensor.
bool retag_meta_memory(const Tensor& tensor, MemoryCategory category);

}  // namespace chassis
