// Products and softmax of small tiles, fp32 on the CPU: one table for each instruction set.
#pragma once

#include <cstdint>

#include "bf16.hpp"
#include "chassis/simd.hpp"

namespace interval {

// Loops over values of T, float or Bf16, in fp32.
template <typename T>
struct LoopsOf {
  float (*dot)(const float* a, const T* b, int64_t n);
  void (*add)(float factor, const T* from, float* sum, int64_t n);  // sum += factor · from
  void (*widen)(const T* from, float* to, int64_t n);
  void (*narrow)(const float* from, T* to, int64_t n);  // as to_bf16()
};

struct Tiles {
  // c[m, n] = or += a[m, k] · b[k, n]. a has any strides, b and c have contiguous rows ldb and ldc apart.
  void (*product)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b,
                  int64_t ldb, float* c, int64_t ldc, bool add);
  // Over x[lo, hi), zero elsewhere in [0, n): x = softmax(scale · x); returns log Σ exp(scale · x), 0 if empty.
  float (*softmax)(float* x, int64_t n, int64_t lo, int64_t hi, float scale);
  // Over x[lo, hi), zero elsewhere in [0, n): x = exp(scale · x - lse).
  void (*probabilities)(float* x, int64_t n, int64_t lo, int64_t hi, float scale, float lse);
  // p = p · (dp - delta) · scale
  void (*score_gradient)(float* p, const float* dp, int64_t n, float delta, float scale);
  // Over x[lo, hi): x = cap · tanh(scale · x / cap); slope, unless NULL, is the derivative of the tanh.
  void (*softcap)(float* x, float* slope, int64_t lo, int64_t hi, float scale, float cap);
  // Over p[lo, hi): p *= slope.
  void (*multiply)(float* p, const float* slope, int64_t lo, int64_t hi);
  LoopsOf<float> fp32;
  LoopsOf<Bf16> bf16;

  const LoopsOf<float>& loops_of(float) const { return fp32; }
  const LoopsOf<Bf16>& loops_of(Bf16) const { return bf16; }
};

const Tiles& tiles(chassis::isa::Baseline);
const Tiles& tiles(chassis::isa::Avx2);
const Tiles& tiles(chassis::isa::Avx512);

// The best table for this processor.
inline const Tiles& tiles() {
  static const Tiles& best = chassis::for_best_isa([](auto isa) -> const Tiles& { return tiles(isa); });
  return best;
}

}  // namespace interval
