// Products and softmax of small tiles, fp32 on the CPU: one table for each instruction set, chosen once.
#pragma once

#include <cstdint>

namespace interval {

struct Tiles {
  const char* name;

  // c[m, n] = or += a[m, k] · b[k, n]. a has any strides, b and c have contiguous rows ldb and ldc apart.
  void (*product)(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b,
                  int64_t ldb, float* c, int64_t ldc, bool add);
  // Over x[lo, hi), zero elsewhere in [0, n): x = softmax(scale · x); returns log Σ exp(scale · x), 0 if empty.
  float (*softmax)(float* x, int64_t n, int64_t lo, int64_t hi, float scale);
  // Over x[lo, hi), zero elsewhere in [0, n): x = exp(scale · x - lse).
  void (*probabilities)(float* x, int64_t n, int64_t lo, int64_t hi, float scale, float lse);
  // p = p · (dp - delta) · scale
  void (*score_gradient)(float* p, const float* dp, int64_t n, float delta, float scale);
  float (*dot)(const float* a, const float* b, int64_t n);
};

extern const Tiles kBaseline;
#if defined(__x86_64__)
extern const Tiles kAvx2;
extern const Tiles kAvx512;
#endif

// The best that this processor runs.
const Tiles& tiles();

}  // namespace interval
