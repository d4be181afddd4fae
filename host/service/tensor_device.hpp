// The device of a tensor.
#pragma once

#include <cstdint>
#include <string>

#include "chassis/tensor.h"
#include "host/base/device_types.hpp"

namespace chassis {

struct Device {
  // The types that the host itself uses. The others have rows in host/base/device_types.cpp: see device_of.
  enum class Type : uint32_t { kCpu = CHASSIS_DEVICE_CPU, kMeta = CHASSIS_DEVICE_META };
  Type type = Type::kCpu;
  int index = 0;

  // The row of its type. Throws an internal error if the type is not in the table.
  const DeviceSpec& spec() const;
  std::string text() const;  // "cpu", "cuda:0", "meta"; "unknown" for a type that is not in the table
  Device host() const;       // the device that tensors are offloaded to
  bool operator==(const Device&) const = default;
};

inline Device device_of(const DeviceSpec& spec, int index = 0) { return {static_cast<Device::Type>(spec.id), index}; }

}  // namespace chassis
