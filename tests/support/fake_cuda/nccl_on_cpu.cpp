// The plugin nccl, for tensors of the CPU: the memory of the fake's device.
#include "chassis/tensor.h"

#undef CHASSIS_DEVICE_CUDA
#define CHASSIS_DEVICE_CUDA CHASSIS_DEVICE_CPU

#include "plugins/comm/nccl/plugin.cpp"
