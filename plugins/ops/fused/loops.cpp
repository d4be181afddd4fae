// The loops in plain C++ that compilers vectorise; compiled once for each instruction set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "chassis/simd.hpp"
#include "loops.hpp"

namespace fused {
namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + chassis::exponential(-x)); }

float norm(const float* x, const float* weight, float offset, float* y, int64_t n, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * r * (offset + weight[i]);
  return r;
}

float add_norm(const float* a, const float* b, const float* weight, float offset, float* sum, float* y, int64_t n,
               float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float s = a[i] + b[i];
    sum[i] = s;
    squares += s * s;
  }
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = sum[i] * r * (offset + weight[i]);
  return r;
}

void norm_backward(const float* dy, const float* x, const float* weight, float offset, const float* carry, float* dx,
                   int64_t n, float r) {
  float dot = 0.0f;
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * (offset + weight[i]) * x[i];
  const float c = dot * r * r * r / static_cast<float>(n);
  if (carry)
    for (int64_t i = 0; i < n; ++i) dx[i] = carry[i] + (dy[i] * (offset + weight[i]) * r - x[i] * c);
  else
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * (offset + weight[i]) * r - x[i] * c;
}

void norm_weight(const float* dy, const float* x, float* dweight, int64_t n, float r) {
  for (int64_t i = 0; i < n; ++i) dweight[i] += dy[i] * (x[i] * r);
}

void rotate(const float* x, const float* cosine, const float* sine, float* y, int64_t half, float direction) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = direction * sine[i];
    y[i] = a * cosine[i] - b * s;
    y[i + half] = b * cosine[i] + a * s;
  }
}

void silu_mul(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void silu_mul_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = sigmoid(gate[i]), g = gate[i], d = dy[i], u = up[i];
    dup[i] = d * g * s;
    dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
  }
}

// gelu_tanh(g) = g · sigmoid(2 · kScale · (g + kCubic · g³))
constexpr float kScale = 0.7978845608028654f, kCubic = 0.044715f;

void gelu_tanh_mul(const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    y[i] = g * sigmoid(2.0f * kScale * (g + kCubic * g * g * g)) * up[i];
  }
}

void gelu_tanh_mul_backward(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i], d = dy[i], u = up[i];
    const float s = sigmoid(2.0f * kScale * (g + kCubic * g * g * g));
    dup[i] = d * g * s;
    dgate[i] = d * u * s * (1.0f + g * (1.0f - s) * 2.0f * kScale * (1.0f + 3.0f * kCubic * g * g));
  }
}

float log_sum_exp(const float* x, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += chassis::exponential(x[i] - largest);
  return largest + std::log(sum);
}

void softmax_scaled(float* x, int64_t n, float lse, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = chassis::exponential(x[i] - lse) * scale;
}

void add(const float* a, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i];
}

void softcap(float* x, int64_t n, float cap) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * chassis::hyperbolic_tangent(x[i] / cap);
}

void softmax_capped(float* x, int64_t n, float lse, float scale, float cap) {
  for (int64_t i = 0; i < n; ++i) {
    const float t = x[i] / cap;
    x[i] = chassis::exponential(x[i] - lse) * scale * (1.0f - t * t);
  }
}

float layer_norm(const float* x, const float* weight, const float* bias, float* y, int64_t n, float eps, float* mean) {
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  const float m = sum / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - m) * (x[i] - m);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  if (bias)
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) * r * weight[i] + bias[i];
  else
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) * r * weight[i];
  *mean = m;
  return r;
}

void layer_norm_backward(const float* dy, const float* x, const float* weight, const float* carry, float* dx, int64_t n,
                         float mean, float r) {
  float sum = 0.0f, dot = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    sum += dy[i] * weight[i];
    dot += dy[i] * weight[i] * (x[i] - mean);
  }
  const float a = sum / static_cast<float>(n), b = dot * r * r / static_cast<float>(n);
  if (carry)
    for (int64_t i = 0; i < n; ++i) dx[i] = carry[i] + r * (dy[i] * weight[i] - a - (x[i] - mean) * b);
  else
    for (int64_t i = 0; i < n; ++i) dx[i] = r * (dy[i] * weight[i] - a - (x[i] - mean) * b);
}

void layer_norm_weight(const float* dy, const float* x, float* dweight, int64_t n, float mean, float r) {
  for (int64_t i = 0; i < n; ++i) dweight[i] += dy[i] * ((x[i] - mean) * r);
}

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops table = {norm,
                                  add_norm,
                                  norm_backward,
                                  norm_weight,
                                  rotate,
                                  silu_mul,
                                  silu_mul_backward,
                                  gelu_tanh_mul,
                                  gelu_tanh_mul_backward,
                                  log_sum_exp,
                                  softmax_scaled,
                                  add,
                                  softcap,
                                  softmax_capped,
                                  layer_norm,
                                  layer_norm_backward,
                                  layer_norm_weight};
  return table;
}

}  // namespace fused
