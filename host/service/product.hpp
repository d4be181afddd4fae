// Products of fp32 or bf16 matrices into fp32 by AVX-512, for processors on which LibTorch's library does not use it.
// All other products are in gemm.cpp.
#pragma once

#include <cstdint>

namespace chassis {

// A factor as it is stored: strides in values, one of which is 1. T is float, or uint16_t for bf16.
template <typename T>
struct Factor {
  const T* data;
  int64_t row, column;
};

// c[m, n] = alpha · a[m, k] · b[k, n] + beta · c. Rows of c begin `ldc` elements apart; c is not read if beta is 0.
template <typename T>
struct Product {
  int64_t m, n, k;
  Factor<T> a, b;
  float* c;
  int64_t ldc;
  float alpha, beta;
};

// True if multiply() can run on this processor.
template <typename T>
bool can_multiply();
// True if multiply() is faster here than LibTorch: on AMD processors, MKL runs its AVX2 kernels, for bf16 too. Measured
// on Zen 4, 2 cores: fp32 1.0 to 1.15 times as fast for wide products, 1.5 to 3 times for those of 16 columns; bf16 2.0
// to 2.5 times for wide products, 3 to 18 times for those of 16 columns.
template <typename T>
bool multiplies_faster(const Product<T>& product);

// [step] Computes on the host's threads. The order in which the terms of an element are summed depends on k alone. Each
// thread keeps 2.3 MB for copies of the factors, as BLAS libraries do.
template <typename T>
void multiply(const Product<T>& product);

}  // namespace chassis
