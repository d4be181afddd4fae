// Steps of AdamW over blocks of 8-bit states, for each instruction set. All give the same bits.
#pragma once

#include <cstdint>

#include "chassis/adamw.hpp"
#include "chassis/simd.hpp"
#include "codes.hpp"

namespace adamw8bit {

constexpr int64_t kBlock = 256;

enum class Order : int32_t {
  kTorch,  // decay before the update, as in torch.optim.AdamW; codes are the nearest
  kBnb,    // decay after it, and codes of the average keep its sign, as in the CUDA kernels of bitsandbytes
};

// Of one tensor. eps and the step size carry the correction of the second average.
struct Coefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, minus_step_size, decay, grad_scale;
};

struct Rows {
  float* param;
  const float* grad;
  uint8_t *average, *square;              // codes
  float *average_absmax, *square_absmax;  // one for each block
};

struct Loops {
  // Elements [begin, end); begin is at a block.
  void (*step_blocks)(const Rows& rows, int64_t begin, int64_t end, const Coefficients& k, Order order,
                      const CodeTable& signed_code, const CodeTable& unsigned_code);
  // fp32 states, as the plugin adamw computes.
  void (*step_fp32)(float* p, const float* g, float* m, float* v, int64_t count, const chassis::AdamWCoefficients& k);
  // The same in the order of bitsandbytes.
  void (*step_fp32_bnb)(float* p, const float* g, float* m, float* v, int64_t count, const Coefficients& k);
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

}  // namespace adamw8bit
