// The device of a run. One binary serves the CPU and CUDA; LibTorch's CUDA library is loaded on demand.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "host/plugin/library.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// `setting` is "auto", "cpu", "cuda" or "cuda:1". "auto" chooses CUDA if there are a driver, a device and LibTorch's
// CUDA libraries. Throws a config error if CUDA is asked for and not available.
Device choose_device(std::string_view setting);
// Loads LibTorch's CUDA library. Returns an empty text, or why CUDA cannot be used. Must be called before LibTorch is
// first asked about CUDA, since LibTorch remembers the answer.
std::string load_cuda();

struct DeviceMemory {
  uint64_t active_bytes = 0;    // held by tensors
  uint64_t reserved_bytes = 0;  // held by the allocator
  uint64_t peak_active_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t num_failures = 0;     // allocations that failed; not on the CPU: see last_memory_failure()
  uint64_t free_swap_bytes = 0;  // CPU only
  std::string limited_by = {};   // CPU only: HostMemory::limited_by
};
// On the CPU, the allocator counts the bytes that are held; total and free bytes are those of host_memory().
DeviceMemory device_memory(Device device);
// Uninitialized page-locked host memory, which CUDA devices copy from and to without staging. Counted under this
// thread's tags. CUDA must have been loaded. Throws an out-of-memory error.
Tensor pinned_tensor(std::span<const int64_t> sizes, Dtype dtype);
// Waits for the device's queued work; returns at once on the CPU.
void synchronize(Device device);
// "NVIDIA H200", or the CPU's model name.
std::string device_name(Device device);
// The versions that CUDA code of plugins must match: the major version of LibTorch's CUDA, the compute capability of
// the device (90 for 9.0) and the major version of the driver. Empty on the CPU, or if CUDA is not available.
std::optional<CudaVersions> cuda_versions(Device device);
// The largest resident memory of the process so far, as the operating system counts it.
uint64_t peak_resident_bytes();

// Whether the device has bf16 matrix instructions: AMX or AVX512-BF16 on the CPU; true for any CUDA device.
bool has_fast_bf16(Device device);

}  // namespace chassis
