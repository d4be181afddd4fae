// The inner loops of bnb4 on the CPU, one table for each instruction set. All give the same bits.
#pragma once

#include <cstdint>

#include "chassis/simd.hpp"
#include "tables.hpp"

namespace bnb4 {

// `values` begin at a block; the last block may be partial. Byte j of the codes has element 2j in its high half.
struct Loops {
  // Writes (n + 1) / 2 codes and one absmax for each block. Returns -1, or the first block that has a value that is NaN
  // or infinite; what it writes for that block is undefined.
  int64_t (*quantize_f32)(Code code, const float* values, int64_t n, int64_t block, uint8_t* codes, float* absmax);
  int64_t (*quantize_bf16)(Code code, const uint16_t* values, int64_t n, int64_t block, uint8_t* codes, float* absmax);
  int64_t (*quantize_f16)(Code code, const uint16_t* values, int64_t n, int64_t block, uint8_t* codes, float* absmax);

  // values[i] = table[code] · absmax of its block, multiplied in fp32 and rounded once, to nearest even.
  void (*dequantize_f32)(const float* table, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                         float* values);
  void (*dequantize_bf16)(const float* table, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                          uint16_t* values);
  void (*dequantize_f16)(const float* table, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                         uint16_t* values);

  // out[i] = sums[i] + added[i] in bf16, rounded once, to nearest even. `added` may be NULL for none, or `out`.
  void (*round_bf16)(const float* sums, const uint16_t* added, int64_t n, uint16_t* out);
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

// The best table for this processor.
inline const Loops& loops() {
  static const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
  return best;
}

}  // namespace bnb4
