// The loops as plain C++ that compilers vectorise; included by one source per instruction set, which names the table.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "loops.hpp"

namespace fused {
namespace {

// e^x within 2 ulp for x in [-87, 88], 0 below: 2^k times a polynomial of degree 6 on [-ln2/2, ln2/2] (Cephes expf).
inline float exponential(float x) {
  const float clamped = std::min(std::max(x, -87.3f), 88.0f);
  const float k = std::floor(clamped * 1.44269504088896341f + 0.5f);
  const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = (p * r * r + r + 1.0f) * std::bit_cast<float>((static_cast<int32_t>(k) + 127) << 23);
  return x < -87.3f ? 0.0f : value;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

float norm(const float* x, const float* weight, float* y, int64_t n, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * r * weight[i];
  return r;
}

float add_norm(const float* a, const float* b, const float* weight, float* sum, float* y, int64_t n, float eps) {
  float squares = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float s = a[i] + b[i];
    sum[i] = s;
    squares += s * s;
  }
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = sum[i] * r * weight[i];
  return r;
}

void norm_backward(const float* dy, const float* x, const float* weight, const float* carry, float* dx, int64_t n,
                   float r) {
  float dot = 0.0f;
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * weight[i] * x[i];
  const float c = dot * r * r * r / static_cast<float>(n);
  if (carry)
    for (int64_t i = 0; i < n; ++i) dx[i] = carry[i] + (dy[i] * weight[i] * r - x[i] * c);
  else
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * weight[i] * r - x[i] * c;
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

float log_sum_exp(const float* x, int64_t n) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += exponential(x[i] - largest);
  return largest + std::log(sum);
}

void softmax_scaled(float* x, int64_t n, float lse, float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = exponential(x[i] - lse) * scale;
}

void add(const float* a, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += a[i];
}

}  // namespace

const Loops FUSED_LOOPS = {FUSED_NAME, norm,   add_norm,  norm_backward,     norm_weight,
                           rotate,     silu_mul, silu_mul_backward, log_sum_exp, softmax_scaled, add};

}  // namespace fused
