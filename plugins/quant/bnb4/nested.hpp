// Double quantization: the absmax of the blocks, less their mean, in the signed dynamic 8-bit code (Dettmers et al.
// 2022, "8-bit Optimizers via Block-wise Quantization") in blocks of 256.
#pragma once

#include <array>
#include <cstdint>

namespace bnb4 {

constexpr int64_t kNestedBlock = 256;

// The values of the 8-bit code, ascending. Rationale: it is a constant, because the sums by which other programs
// compute it differ in the last bits between versions.
extern const std::array<float, 256> kDynamicMap;

// The code whose value is nearest to x. Ties go to the code that the search from the middle visits last, as in
// bitsandbytes' CUDA kernels.
uint8_t nearest_code(const float* map, float x);

float mean(const float* values, int64_t count);

// Writes a code for each absmax, and one nested absmax for every 256.
void quantize_absmax(const float* absmax, int64_t count, const float* map, float offset, uint8_t* codes,
                     float* nested_absmax);
// absmax[i] = map[codes[i]] · nested_absmax of block first + i, plus offset; two roundings.
void restore_absmax(const uint8_t* codes, const float* nested_absmax, const float* map, float offset, int64_t first,
                    int64_t count, float* absmax);

}  // namespace bnb4
