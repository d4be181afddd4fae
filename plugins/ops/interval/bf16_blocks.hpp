// Loops of attention in bf16 on processors that multiply it, by AMX or AVX512-BF16. They work on transposed blocks: a
// row belongs to one key and has one column per query of a block, so that sums over keys need no sums within vectors.
#pragma once

#include <cstdint>

#include "bf16.hpp"
#include "chassis/simd.hpp"

namespace interval {

using Bf16Pair = uint32_t;  // two that are neighbours in the dim that a product sums over; the first is the lower half
constexpr int64_t kTile = 32;     // all sizes of products are multiples of it
constexpr int64_t kColumns = 64;  // queries of a block

struct Bf16Blocks {
  // Called before and after the products of one thread.
  void (*begin)();
  void (*end)();
  // c[m, n] = a · b, or c + a · b; b has k/2 rows of ldb pairs.
  void (*product)(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda, const Bf16Pair* b, int64_t ldb, float* c,
                  int64_t ldc, bool add);

  // Scores s of keys first … first + num_keys - 1, times scale or capped, become weights e^(s - m), with m the largest
  // score of the column; a column sees the keys of [lo, hi). num_keys is even. Writes m + log(sum) and 1 / sum, or
  // zeros for a column that sees none.
  void (*softmax)(float* s, int64_t first, int64_t num_keys, const int32_t* lo, const int32_t* hi, float scale,
                  float softcap, Bf16Pair* weights, float* lse, float* inverse);
  // Computes from scores s and from products dp of the values with the output's gradient: probabilities p = e^(s -
  // lse), and the gradient ds = p · (dp - delta) of the scores by rows and by pairs of keys.
  void (*gradient)(const float* s, const float* dp, int64_t first, int64_t num_keys, const int32_t* lo,
                   const int32_t* hi, float scale, float softcap, const float* lse, const float* delta, Bf16* p,
                   Bf16* ds, Bf16Pair* ds_pairs);

  // Copies a matrix of bf16, whose rows begin row_stride elements apart, and adds zeros up to padded sizes.
  void (*copy)(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to, int64_t padded_rows,
               int64_t padded_columns);
  // Copies its transpose.
  void (*transpose)(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to, int64_t padded_rows,
                    int64_t padded_columns);
  // Form pairs of a copied matrix: pairs of rows [rows / 2, columns], and pairs of columns, transposed [columns / 2,
  // rows].
  void (*pair_rows)(const Bf16* from, int64_t rows, int64_t columns, Bf16Pair* to);
  void (*pair_columns)(const Bf16* from, int64_t rows, int64_t columns, Bf16Pair* to);
  // to[i, j] = from[j, i] · factor[i], rounded; a NULL factor is 1.
  void (*store_transposed)(const float* from, int64_t ld, int64_t rows, int64_t columns, const float* factor, Bf16* to,
                           int64_t row_stride);
  void (*store)(const float* from, int64_t ld, int64_t rows, int64_t columns, Bf16* to, int64_t row_stride);
  float (*dot)(const Bf16* a, const Bf16* b, int64_t n);
};

// The unit that multiplies bf16 and sums in fp32: AMX, or AVX512-BF16.
enum class Bf16Unit { kNone, kTiles, kVectors };

// NULL if this build does not have the instructions.
const Bf16Blocks* bf16_blocks(Bf16Unit unit, chassis::isa::Baseline);
const Bf16Blocks* bf16_blocks(Bf16Unit unit, chassis::isa::Avx2);
const Bf16Blocks* bf16_blocks(Bf16Unit unit, chassis::isa::Avx512);

// The best unit that the processor and the kernel offer.
Bf16Unit bf16_unit();
// Its loops; NULL if there is none.
const Bf16Blocks* bf16_blocks();

}  // namespace interval
