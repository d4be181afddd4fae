// Pieces of products in bf16 on processors with AMX. Factors are packed so that a tile of the processor is 1 KiB of
// memory; sums are fp32.
#pragma once

#include <cstdint>

#include "chassis/simd.hpp"

namespace bnb4 {

using Bf16 = uint16_t;           // the upper half of an fp32
constexpr int64_t kSquare = 32;  // of sums kept in registers; all sizes here are multiples of it
constexpr int64_t kPacked = kSquare * kSquare;  // elements of a factor for one square of sums and 32 products each

struct Tiles {
  // Called before and after the products of one thread.
  void (*begin)();
  void (*end)();

  // Packs the left factor: up to 32 rows of `columns` elements, whose products are summed; both are padded with zeros.
  void (*pack_left)(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to);
  // Packs 16 columns of the right factor, given as rows of `depth` elements: the first or the second half of the 32
  // columns in `to`.
  void (*pack_columns)(const Bf16* from, int64_t row_stride, int64_t depth, int64_t half, Bf16* to);
  // Packs 32 rows of the right factor, of `columns` elements; the packed 32 columns of each square are `step` elements
  // apart.
  void (*pack_rows)(const Bf16* from, int64_t row_stride, int64_t columns, int64_t step, Bf16* to);

  // sums[32, 32], with rows `ld` apart, becomes the product of packed factors over `depth` elements, or is increased by
  // it.
  void (*multiply)(const Bf16* left, const Bf16* right, int64_t depth, float* sums, int64_t ld, bool add);
  // to = round(sums + bias + to); bias may be NULL, and is the same for all rows; `to` is only added if `add`.
  void (*store)(const float* sums, int64_t ld, int64_t rows, int64_t columns, const Bf16* bias, bool add, Bf16* to,
                int64_t row_stride);
};

// NULL if this build does not have the instructions.
const Tiles* tiles(chassis::isa::Baseline);
const Tiles* tiles(chassis::isa::Avx2);
const Tiles* tiles(chassis::isa::Avx512);

// NULL if this processor or kernel does not have AMX for bf16.
const Tiles* tiles();

}  // namespace bnb4
