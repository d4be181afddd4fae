// Philox4x32-10 (Salmon et al., SC 2011): element i of a stream is word i % 4 of the block with counter i / 4, so that
// any part of a stream can be computed alone, with the same bits on every machine.
#pragma once

#include <array>
#include <cstdint>

namespace chassis {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Sets out[i - begin] for begin <= i < begin + count.
void philox_uniform(uint64_t key, uint64_t begin, uint64_t count, float* out);
void philox_normal(uint64_t key, uint64_t begin, uint64_t count, float* out);

}  // namespace chassis
