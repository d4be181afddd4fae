// Asks the driver and NVML about the GPUs that this process may use.
#pragma once

#include <optional>

namespace chassis {

// As counted by the driver, which reads CUDA_VISIBLE_DEVICES; 0 without a driver. Occupies no GPU.
int num_visible_gpus();
// [control] The same, counted by a copy of this process: forks of a process that has asked the driver cannot use it.
int num_visible_gpus_by_copy();
// The temperature of the visible GPU with this index in °C, by NVML's nvmlDeviceGetTemperature. nullopt without driver
// or NVML.
std::optional<double> gpu_temperature(int index);

}  // namespace chassis
