// The inner loops of this plugin, over fp32 rows on the CPU: one table for each instruction set.
#pragma once

#include <cstdint>

#include "chassis/simd.hpp"

namespace fused {

struct Loops {
  // y = x · r · gain with r = 1 / sqrt(mean(x²) + eps) and gain = offset + weight; returns r.
  float (*norm)(const float* x, const float* weight, float offset, float* y, int64_t n, float eps);
  // sum = a + b, y = sum · r · gain; returns r.
  float (*add_norm)(const float* a, const float* b, const float* weight, float offset, float* sum, float* y, int64_t n,
                    float eps);
  // dx = carry + r · (dy · gain) - x · r³/n · Σ dy·gain·x; a NULL carry is 0. dx may be carry.
  void (*norm_backward)(const float* dy, const float* x, const float* weight, float offset, const float* carry,
                        float* dx, int64_t n, float r);
  // dweight[i] += dy[i] · x[i] · r
  void (*norm_weight)(const float* dy, const float* x, float* dweight, int64_t n, float r);

  // Rotate-half pairs (x[i], x[i + half]); direction +1 or -1. y may be x.
  void (*rotate)(const float* x, const float* cosine, const float* sine, float* y, int64_t half, float direction);

  // y = f(gate) · up; backward recomputes the sigmoid. Each output may be its own input.
  void (*silu_mul)(const float* gate, const float* up, float* y, int64_t n);
  void (*silu_mul_backward)(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t n);
  void (*gelu_tanh_mul)(const float* gate, const float* up, float* y, int64_t n);
  void (*gelu_tanh_mul_backward)(const float* dy, const float* gate, const float* up, float* dgate, float* dup,
                                 int64_t n);

  // Returns log Σ exp(x).
  float (*log_sum_exp)(const float* x, int64_t n);
  // x = exp(x - lse) · scale
  void (*softmax_scaled)(float* x, int64_t n, float lse, float scale);

  void (*add)(const float* a, float* sum, int64_t n);  // sum += a

  // x = cap · tanh(x / cap)
  void (*softcap)(float* x, int64_t n, float cap);
  // x = exp(x - lse) · scale · (1 - (x / cap)²), the last being the derivative of the cap at the capped x.
  void (*softmax_capped)(float* x, int64_t n, float lse, float scale, float cap);

  // y = (x - mean) · r · weight + bias with r = 1 / sqrt(variance + eps); returns r. A NULL bias is 0.
  float (*layer_norm)(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps,
                      float* mean);
  // dx = carry + r · (d - mean(d) - x̂ · mean(d · x̂)), d = dy · weight, x̂ = (x - mean) · r. dx may be carry.
  void (*layer_norm_backward)(const float* dy, const float* x, const float* weight, const float* carry, float* dx,
                              int64_t n, float mean, float r);
  // dweight[i] += dy[i] · (x[i] - mean) · r
  void (*layer_norm_weight)(const float* dy, const float* x, float* dweight, int64_t n, float mean, float r);
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

// The best table for this processor.
inline const Loops& loops() {
  static const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
  return best;
}

}  // namespace fused
