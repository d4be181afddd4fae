// The inner loops of this plugin, over rows in host memory: one table for each instruction set. They compute in fp32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "chassis/simd.hpp"

namespace fused {

using Bf16 = uint16_t;  // the upper half of an fp32

// Loops over rows of fp32 or bf16. A bf16 result is rounded once, to the nearest, ties to even.
template <typename T>
struct RowLoops {
  // y = x · r · gain with r = 1 / sqrt(mean(x²) + eps) and gain = offset + weight; returns r.
  float (*norm)(const T* x, const T* weight, float offset, T* y, int64_t n, float eps);
  // sum = a + b, y = sum · r · gain; returns r. sum may be a or b.
  float (*add_norm)(const T* a, const T* b, const T* weight, float offset, T* sum, T* y, int64_t n, float eps);
  // dx = carry + r · (dy · gain) - x · r³/n · Σ dy·gain·x; a NULL carry is 0. dx may be carry.
  void (*norm_backward)(const T* dy, const T* x, const T* weight, float offset, const T* carry, T* dx, int64_t n,
                        float r);
  // dweight[i] += dy[i] · x[i] · r
  void (*norm_weight)(const T* dy, const T* x, float* dweight, int64_t n, float r);

  // Rotate-half pairs (x[i], x[i + half]); direction +1 or -1. y may be x.
  void (*rotate)(const T* x, const float* cosine, const float* sine, T* y, int64_t half, float direction);

  // y = f(gate) · up; backward recomputes the sigmoid. Each output may be its own input.
  void (*silu_mul)(const T* gate, const T* up, T* y, int64_t n);
  void (*silu_mul_backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n);
  void (*gelu_tanh_mul)(const T* gate, const T* up, T* y, int64_t n);
  void (*gelu_tanh_mul_backward)(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n);

  // sum += a
  void (*add)(const T* a, T* sum, int64_t n);
  void (*add_to_wide)(const T* a, float* sum, int64_t n);

  // y = carry + factor · x; a NULL carry is 0. y may be carry.
  void (*scale)(const T* x, float factor, const T* carry, T* y, int64_t n);
  // sum = scale · sum + factor · x
  void (*combine)(const T* x, float factor, float scale, float* sum, int64_t n);

  // y = (x - mean) · r · weight + bias with r = 1 / sqrt(variance + eps); returns r. A NULL bias is 0.
  float (*layer_norm)(const T* x, const T* weight, const T* bias, T* y, int64_t n, float eps, float* mean);
  // dx = carry + r · (d - mean(d) - x̂ · mean(d · x̂)), d = dy · weight, x̂ = (x - mean) · r. dx may be carry.
  void (*layer_norm_backward)(const T* dy, const T* x, const T* weight, const T* carry, T* dx, int64_t n, float mean,
                              float r);
  // dweight[i] += dy[i] · (x[i] - mean) · r
  void (*layer_norm_weight)(const T* dy, const T* x, float* dweight, int64_t n, float mean, float r);
};

// Loops over rows of fp32 logits.
struct LogitLoops {
  float (*largest)(const float* x, int64_t n);
  // x = exp(x - largest); returns Σ x.
  float (*exp_sum)(float* x, int64_t n, float largest);
  // x = exp(x - largest) · (1 - (x / cap)²); returns Σ exp(x - largest).
  float (*exp_sum_capped)(float* x, int64_t n, float largest, float cap);
  // x = exp(x - lse) · scale
  void (*softmax_scaled)(float* x, int64_t n, float lse, float scale);
  // x = cap · tanh(x / cap)
  void (*softcap)(float* x, int64_t n, float cap);
  // x = exp(x - lse) · scale · (1 - (x / cap)²), the last being the derivative of the cap at the capped x.
  void (*softmax_capped)(float* x, int64_t n, float lse, float scale, float cap);
  void (*to_bf16)(const float* x, Bf16* y, int64_t n);
  // y = factor · x
  void (*from_bf16)(const Bf16* x, float factor, float* y, int64_t n);
};

struct Loops {
  RowLoops<float> f32;
  RowLoops<Bf16> bf16;
  LogitLoops logits;
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

// The best table for this processor.
inline const Loops& loops() {
  static const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
  return best;
}

template <typename T>
const RowLoops<T>& row_loops() {
  if constexpr (std::is_same_v<T, float>)
    return loops().f32;
  else
    return loops().bf16;
}

}  // namespace fused
