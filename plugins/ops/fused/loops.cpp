// The loops in plain C++ that compilers vectorise; compiled once for each instruction set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "chassis/row_loops.hpp"
#include "loops.hpp"

namespace fused {
namespace {

using chassis::narrow, chassis::wide;

template <typename T>
float norm(const T* x, const T* weight, float offset, T* y, int64_t n, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) squares += wide(x[i]) * wide(x[i]);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(wide(x[i]) * r * (offset + wide(weight[i])));
  return r;
}

template <typename T>
float add_norm(const T* a, const T* b, const T* weight, float offset, T* sum, T* y, int64_t n, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    sum[i] = narrow<T>(wide(a[i]) + wide(b[i]));
    squares += wide(sum[i]) * wide(sum[i]);
  }
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(wide(sum[i]) * r * (offset + wide(weight[i])));
  return r;
}

template <typename T>
void norm_backward(const T* dy, const T* x, const T* weight, float offset, const T* carry, T* dx, int64_t n, float r) {
  float dot = 0.0f;
  for (int64_t i = 0; i < n; ++i) dot += wide(dy[i]) * (offset + wide(weight[i])) * wide(x[i]);
  const float c = dot * r * r * r / static_cast<float>(n);
  const auto own = [&](int64_t i) { return wide(dy[i]) * (offset + wide(weight[i])) * r - wide(x[i]) * c; };
  if (carry)
    for (int64_t i = 0; i < n; ++i) dx[i] = narrow<T>(wide(carry[i]) + own(i));
  else
    for (int64_t i = 0; i < n; ++i) dx[i] = narrow<T>(own(i));
}

template <typename T>
void norm_weight(const T* dy, const T* x, float* dweight, int64_t n, float r) {
  for (int64_t i = 0; i < n; ++i) dweight[i] += wide(dy[i]) * (wide(x[i]) * r);
}

template <typename T>
void rotate(const T* x, const float* cosine, const float* sine, T* y, int64_t half, float direction) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = wide(x[i]), b = wide(x[i + half]), s = direction * sine[i];
    y[i] = narrow<T>(a * cosine[i] - b * s);
    y[i + half] = narrow<T>(b * cosine[i] + a * s);
  }
}

float largest(const float* x, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  return largest;
}

// Σ term(i), in fp32 for parts of a row, so that rounding does not grow with its length.
template <typename Term>
[[gnu::always_inline]] inline float sum_of_parts(int64_t n, Term&& term) {
  constexpr int64_t kPart = 256;
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kPart) {
    const int64_t end = std::min(n, begin + kPart);
    float sum = 0.0f;
    for (int64_t i = begin; i < end; ++i) sum += term(i);
    total += static_cast<double>(sum);
  }
  return static_cast<float>(total);
}

float exp_sum(float* x, int64_t n, float largest) {
  return sum_of_parts(n, [=](int64_t i) { return x[i] = chassis::exponential(x[i] - largest); });
}

float exp_sum_capped(float* x, int64_t n, float largest, float cap) {
  return sum_of_parts(n, [=](int64_t i) {
    const float t = x[i] / cap, e = chassis::exponential(x[i] - largest);
    x[i] = e * (1.0f - t * t);
    return e;
  });
}

void softmax_scaled(float* x, int64_t n, float lse, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = chassis::exponential(x[i] - lse) * scale;
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

template <typename From, typename To>
void add(const From* a, To* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = narrow<To>(wide(sum[i]) + wide(a[i]));
}

template <typename T>
void scale(const T* x, float factor, const T* carry, T* y, int64_t n) {
  if (carry)
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(wide(carry[i]) + wide(x[i]) * factor);
  else
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(wide(x[i]) * factor);
}

template <typename T>
void combine(const T* x, float factor, float scale, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] = scale * sum[i] + factor * wide(x[i]);
}

template <typename T>
float layer_norm(const T* x, const T* weight, const T* bias, T* y, int64_t n, float eps, float* mean) {
  float sum = 0.0f, squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += wide(x[i]);
  const float m = sum / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) squares += (wide(x[i]) - m) * (wide(x[i]) - m);
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  if (bias)
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>((wide(x[i]) - m) * r * wide(weight[i]) + wide(bias[i]));
  else
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>((wide(x[i]) - m) * r * wide(weight[i]));
  *mean = m;
  return r;
}

template <typename T>
void layer_norm_backward(const T* dy, const T* x, const T* weight, const T* carry, T* dx, int64_t n, float mean,
                         float r) {
  float sum = 0.0f, dot = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float d = wide(dy[i]) * wide(weight[i]);
    sum += d;
    dot += d * (wide(x[i]) - mean);
  }
  const float a = sum / static_cast<float>(n), b = dot * r * r / static_cast<float>(n);
  const auto own = [&](int64_t i) { return r * (wide(dy[i]) * wide(weight[i]) - a - (wide(x[i]) - mean) * b); };
  if (carry)
    for (int64_t i = 0; i < n; ++i) dx[i] = narrow<T>(wide(carry[i]) + own(i));
  else
    for (int64_t i = 0; i < n; ++i) dx[i] = narrow<T>(own(i));
}

template <typename T>
void layer_norm_weight(const T* dy, const T* x, float* dweight, int64_t n, float mean, float r) {
  for (int64_t i = 0; i < n; ++i) dweight[i] += wide(dy[i]) * ((wide(x[i]) - mean) * r);
}

void to_bf16(const float* x, Bf16* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = narrow<Bf16>(x[i]);
}

void from_bf16(const Bf16* x, float factor, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = factor * wide(x[i]);
}

template <typename T>
constexpr RowLoops<T> row_table() {
  return {norm<T>,
          add_norm<T>,
          norm_backward<T>,
          norm_weight<T>,
          rotate<T>,
          chassis::silu_mul<T>,
          chassis::silu_mul_backward<T, T>,
          chassis::gelu_tanh_mul<T>,
          chassis::gelu_tanh_mul_backward<T, T>,
          add<T, T>,
          add<T, float>,
          scale<T>,
          combine<T>,
          layer_norm<T>,
          layer_norm_backward<T>,
          layer_norm_weight<T>};
}

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops table = {
      row_table<float>(),
      row_table<Bf16>(),
      {largest, exp_sum, exp_sum_capped, softmax_scaled, softcap, softmax_capped, to_bf16, from_bf16}};
  return table;
}

}  // namespace fused
