// What collectives need of a device: its current stream, and copies within its memory.
#pragma once

#include <cstdint>

#include "host/service/tensor.hpp"

namespace chassis {

// The cudaStream_t that LibTorch queues on now; NULL on the CPU.
void* current_stream(Device device);
// On that stream; regions are equal or do not overlap.
void copy_bytes(void* to, const void* from, uint64_t num_bytes, Device device);

}  // namespace chassis
