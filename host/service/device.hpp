// The device of a run: one binary serves CPU and CUDA, whose part of LibTorch is loaded when it is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "host/plugin/library.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// "auto", "cpu", "cuda" or "cuda:1". auto takes CUDA where a driver, a device and LibTorch's CUDA libraries are there.
// Throws a config error in words if CUDA is asked for and can not be had.
Device choose_device(std::string_view setting);
// Loads LibTorch's CUDA part; must come before the first question about CUDA, since LibTorch remembers the answer.
// An empty text, or why it can not be used.
std::string load_cuda();

struct DeviceMemory {
  uint64_t active_bytes = 0;    // held by tensors
  uint64_t reserved_bytes = 0;  // held by the allocator
  uint64_t peak_active_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};
// CPU: as counted by the allocator; total and free are the machine's, or what its control group allows.
DeviceMemory device_memory(Device device);
// Uninitialized host memory that is page-locked, so that CUDA devices copy from and to it without staging; counted as
// this thread's tags say. CUDA must have been loaded. Throws out of memory.
Tensor pinned_tensor(std::span<const int64_t> sizes, Dtype dtype);
// Waits for the device's queued work; returns at once on the CPU.
void synchronize(Device device);
// "NVIDIA H200", or the CPU's model name; for the head of a log.
std::string device_name(Device device);
// What plugins with CUDA code must fit to: CUDA's major version, as LibTorch uses it, and the compute capability of the
// device, 90 for 9.0. None on the CPU, and where no CUDA device is to be had.
std::optional<CudaFacts> cuda_facts(Device device);
// The most that the process has had resident, as the operating system counts.
uint64_t peak_resident_bytes();

// True where matrix products in bf16 run at full speed: AMX or AVX512-BF16 on the CPU; any CUDA device.
bool has_fast_bf16(Device device);

}  // namespace chassis
