// Asks drivers about the devices that this process may use.
#pragma once

#include <optional>

#include "host/base/device_types.hpp"

namespace chassis {

// [control] The number of devices of this type, counted by a copy of this process: forks of a process that has asked
// the driver cannot use it. 0 without a driver.
int num_visible_by_copy(const DeviceSpec& spec);
// The temperature in °C of the device with this index among those that a driver shows. nullopt without a driver or a
// sensor.
std::optional<double> gpu_temperature(int index);

}  // namespace chassis
