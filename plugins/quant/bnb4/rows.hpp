// Products of few rows, such as those of one token: values of the weight go directly from codes to registers, and are
// neither rounded nor stored.
#pragma once

#include <cstdint>

#include "chassis/simd.hpp"

namespace bnb4 {

constexpr int64_t kMaxRows = 8;
constexpr int64_t kRowGroup = 32;  // the number of elements in a row is a multiple of it

struct RowLoops {
  // Reorders each 32 elements: those at even places, then those at odd ones.
  void (*split_f32)(const float* x, int64_t n, float* to);
  void (*split_bf16)(const uint16_t* x, int64_t n, float* to);
  // sums[r] += Σ split x[r · x_stride + i] · table[code i] · absmax of its block, for r < num_rows ≤ kMaxRows. The
  // first of the n elements is `within` elements after the start of its block.
  void (*add_dots)(int64_t num_rows, const float* x, int64_t x_stride, const float* table, const uint8_t* codes,
                   const float* absmax, int64_t within, int64_t block, int64_t n, float* sums);
};

const RowLoops& row_loops(chassis::isa::Baseline);
const RowLoops& row_loops(chassis::isa::Avx2);
const RowLoops& row_loops(chassis::isa::Avx512);

// The best table for this processor.
inline const RowLoops& row_loops() {
  static const RowLoops& best = chassis::for_best_isa([](auto isa) -> const RowLoops& { return row_loops(isa); });
  return best;
}

}  // namespace bnb4
