// Loops over rows of fp32 or bf16, computed in fp32, for sources that are compiled once for each instruction set
// (chassis/simd.hpp). All are static, so that each such source has its own.
#pragma once

#include <cstdint>
#include <type_traits>

#include "chassis/bf16.hpp"
#include "chassis/simd.hpp"

CHASSIS_SDK_BEGIN

// A bf16 is widened when read, and rounded when written: to the nearest, ties to even.
static inline float wide(float x) { return x; }
static inline float wide(uint16_t x) { return from_bf16(x); }
template <typename T>
static inline T narrow(float x) {
  if constexpr (std::is_same_v<T, float>)
    return x;
  else
    return to_bf16(x);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// y = f(gate) · up with silu or gelu_tanh (Shazeer 2020); backward computes the sigmoid again. D is float or T. Each
// output may be its own input.
template <typename T>
static void silu_mul(const T* gate, const T* up, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(gate[i]);
    y[i] = narrow<T>(g * sigmoid(g) * wide(up[i]));
  }
}
template <typename D, typename T>
static void silu_mul_backward(const D* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(gate[i]), d = wide(dy[i]), u = wide(up[i]), s = sigmoid(g);
    dup[i] = narrow<T>(d * g * s);
    dgate[i] = narrow<T>(d * u * s * (1.0f + g * (1.0f - s)));
  }
}

// gelu_tanh(g) = g · sigmoid(2 · kGeluScale · (g + kGeluCubic · g³))
static constexpr float kGeluScale = 0.7978845608028654f, kGeluCubic = 0.044715f;

template <typename T>
static void gelu_tanh_mul(const T* gate, const T* up, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(gate[i]);
    y[i] = narrow<T>(g * sigmoid(2.0f * kGeluScale * (g + kGeluCubic * g * g * g)) * wide(up[i]));
  }
}
template <typename D, typename T>
static void gelu_tanh_mul_backward(const D* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = wide(gate[i]), d = wide(dy[i]), u = wide(up[i]);
    const float s = sigmoid(2.0f * kGeluScale * (g + kGeluCubic * g * g * g));
    dup[i] = narrow<T>(d * g * s);
    dgate[i] = narrow<T>(d * u * s * (1.0f + g * (1.0f - s) * 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCubic * g * g)));
  }
}

CHASSIS_SDK_END
