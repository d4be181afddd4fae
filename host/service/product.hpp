// Products of fp32 matrices by AVX-512, for processors on which LibTorch's library does not use it. The other products
// are in gemm.cpp.
#pragma once

#include <cstdint>

namespace chassis {

// A factor as it is stored: strides in elements, one of which is 1.
struct Factor {
  const float* data;
  int64_t row, column;
};

// c[m, n] = alpha · a[m, k] · b[k, n] + beta · c. Rows of c begin `ldc` elements apart; c is not read if beta is 0.
struct Product {
  int64_t m, n, k;
  Factor a, b;
  float* c;
  int64_t ldc;
  float alpha, beta;
};

// True if multiply() can run on this processor.
bool can_multiply();
// True if multiply() is faster here than LibTorch: MKL runs its AVX2 kernels on AMD's processors. Measured on Zen 4, 2
// cores: 1.0 to 1.15 times as fast for wide products, 1.5 to 3 times for those of 16 columns.
bool multiplies_faster(const Product& product);

// [step] Computes on the host's threads. The order in which the terms of an element are summed depends on k alone.
// Threads keep 2.3 MB each for copies of the factors, as BLAS libraries do.
void multiply(const Product& product);

}  // namespace chassis
