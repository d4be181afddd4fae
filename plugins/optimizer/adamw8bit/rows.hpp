// Types for the step of one tensor, on the CPU and on CUDA, whose compiler reads C++17.
#pragma once

#include <cstdint>

namespace adamw8bit {

constexpr int64_t kBlock = 256;

enum class Order : int32_t {
  kTorch,  // decay before the update, as in torch.optim.AdamW; codes are the nearest
  kBnb,    // decay after it, and codes of the average keep its sign, as in the CUDA kernels of bitsandbytes
};

// The coefficients of one tensor. eps and the step size include the bias correction of the second average.
struct Coefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, minus_step_size, decay, grad_scale;
  int32_t smallest_square;  // the lowest code of a square above 0: 0 (the nearest) or 1
};

struct Rows {
  float* param;
  const float* grad;
  uint8_t *average, *square;              // codes
  float *average_absmax, *square_absmax;  // one for each block
};

}  // namespace adamw8bit
