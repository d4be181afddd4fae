// RMSNorm on a GPU. These functions only launch kernels and return before the work is done: NULL, or CUDA's error text.
#pragma once

#include <cstdint>

namespace cuda_rms_norm {

enum class Dtype { kF32, kF16, kBF16 };

struct Problem {
  int device;
  void* stream;        // of CUDA
  Dtype dtype;         // of x, y and their gradients
  Dtype weight_dtype;  // of weight; its gradient is fp32
  int64_t num_rows;
  int64_t n;  // elements per row
  float eps;
};

// y = cast(x · inverse_rms) · weight, with inverse_rms = 1 / sqrt(mean(x²) + eps) in fp32, stored unless it is NULL.
const char* forward(const Problem& problem, const void* x, const void* weight, void* y, float* inverse_rms);

// dx = or += inverse_rms · (dy·weight − x̂ · mean(dy·weight·x̂)), x̂ = x · inverse_rms.
const char* backward_input(const Problem& problem, const void* x, const void* weight, const float* inverse_rms,
                           const void* dy, void* dx, bool add);

// dweight = beta · dweight + Σ over rows of dy · x̂. `partial` holds num_partials(num_rows) rows of n floats. The order
// of summation is fixed: the same inputs give the same bits.
const char* backward_weight(const Problem& problem, const void* x, const float* inverse_rms, const void* dy,
                            float* partial, float* dweight, float beta);
int64_t num_partials(int64_t num_rows);

}  // namespace cuda_rms_norm
