// The device of a tensor.
#pragma once

#include <cstdint>
#include <string>

#include "chassis/tensor.h"

namespace chassis {

struct Device {
  enum class Type : uint32_t { kCpu = CHASSIS_DEVICE_CPU, kCuda = CHASSIS_DEVICE_CUDA, kMeta = CHASSIS_DEVICE_META };
  Type type = Type::kCpu;
  int index = 0;

  std::string text() const;  // "cpu", "cuda:0", "meta"
  Device host() const;       // the device that tensors are offloaded to
  bool operator==(const Device&) const = default;
};

}  // namespace chassis
