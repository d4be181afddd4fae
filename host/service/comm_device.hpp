// The current stream of a device, and copies within its memory.
#pragma once

#include <cstdint>

#include "host/service/tensor.hpp"

namespace chassis {

// The native handle of LibTorch's current stream, such as a cudaStream_t; NULL for a device without streams.
void* current_stream(Device device);
// Copies on that stream. The regions are the same or do not overlap.
void copy_bytes(void* to, const void* from, uint64_t num_bytes, Device device);

}  // namespace chassis
