// Memory of the simulated devices. Each has one range of addresses that no code may touch; the same bytes are at other
// addresses, which only kernels and copies use. So a read by the host ends in SIGSEGV.
#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace simulated_device {

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* memory);

// The address at which a kernel finds memory of a device. Other addresses stay as they are.
void* address_for_kernels(const void* memory);
// -1: not the memory of a device.
int device_of_memory(const void* memory);

}  // namespace simulated_device
