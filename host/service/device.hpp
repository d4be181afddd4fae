// The device of a run. One binary serves all types of devices; LibTorch's library for one is loaded on demand. What
// differs between types without LibTorch is in host/base/device_types.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "host/base/device_types.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// `setting` is "auto", "cpu", or another name of the table, which may have an index: "cuda:1". "auto" chooses the first
// type of accelerators for which there are a driver, a device and LibTorch's libraries, else the CPU. Throws a config
// error if the setting names an accelerator that is not available.
Device choose_device(std::string_view setting);
// Loads LibTorch's library for an accelerator. Returns an empty text, or why the accelerator cannot be used. Must be
// called before LibTorch is first asked about the accelerator, since LibTorch remembers the answer. Does nothing for
// other types.
std::string load_device_type(const DeviceSpec& spec);
// The type of accelerators that "auto" chooses; NULL if there is none.
const DeviceSpec* usable_accelerator();

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
// Uninitialized page-locked host memory, for devices with pins_host_memory. Counted under this thread's tags. The
// device's type must have been loaded. Throws an out-of-memory error.
Tensor pinned_tensor(std::span<const int64_t> sizes, Dtype dtype);
// Waits for the device's queued work; returns at once without streams.
void synchronize(Device device);
// "NVIDIA H200", or the CPU's model name.
std::string device_name(Device device);
// The versions that code of plugins for this device must match. nullopt on the CPU, or if the device is not available.
std::optional<DeviceVersions> device_versions(Device device);
// Bytes of shared memory that one block of threads may use. nullopt on the CPU, and if this machine has no such device.
std::optional<uint64_t> shared_memory_limit(Device device);
// The largest resident memory of the process so far, as the operating system counts it.
uint64_t peak_resident_bytes();

// Whether the device has bf16 matrix instructions: those of its type, else AMX or AVX512-BF16 of the processor.
bool has_fast_bf16(Device device);

}  // namespace chassis
