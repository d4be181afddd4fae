// Products of fp32 matrices in tiles, and their rounding to bf16, for each instruction set. Elements are summed in the
// same order, whatever the tiles and threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "chassis/simd.hpp"

namespace muon {

// out[m, n] = alpha · a[m, k] · b[k, n] + beta · added[m, n], all with dense rows; `added` may be NULL.
struct Product {
  int64_t m, n, k;
  const float* a;
  const float* packed;  // b, as pack() writes it
  const float* added;
  float alpha, beta;
  float* out;
};

struct Products {
  int64_t panel;  // columns of b in one panel
  // Packs panel `index` of b[k, n], which has `row_stride` elements between rows and `column_stride` between columns,
  // as k rows of `panel` elements, zero beyond n.
  void (*pack)(const float* b, int64_t k, int64_t n, int64_t row_stride, int64_t column_stride, int64_t index,
               float* packed);
  // Computes rows [begin, end) of the columns of one panel.
  void (*multiply)(const Product& product, int64_t panel, int64_t begin, int64_t end);

  // out[i] = alpha · x[i] + beta · added[i] in bf16, to nearest even; `added` may be NULL.
  void (*round)(const float* x, float alpha, const uint16_t* added, float beta, int64_t n, uint16_t* out);
  void (*widen)(const uint16_t* x, int64_t n, float* out);
};

const Products& products(chassis::isa::Baseline);
const Products& products(chassis::isa::Avx2);
const Products& products(chassis::isa::Avx512);

}  // namespace muon
