// The loops in plain C++ that compilers vectorise; compiled once for each instruction set.
#include "loops.hpp"

#include "chassis/row_loops.hpp"

namespace grouped {
namespace {

using chassis::narrow, chassis::wide;

template <typename T>
void add_scaled(const T* x, float w, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += w * wide(x[i]);
}

template <typename From, typename T>
void scale(const From* x, float w, T* y, bool adds, int64_t n) {
  if (adds)
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(wide(y[i]) + w * wide(x[i]));
  else
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<T>(w * wide(x[i]));
}

template <typename A, typename B>
float dot(const A* a, const B* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += wide(a[i]) * wide(b[i]);
  return sum;
}

template <typename T>
constexpr RowLoops<T> kRowLoops = {
    .add_scaled = add_scaled<T>,
    .scale = scale<T, T>,
    .scale_wide = scale<float, T>,
    .dot = dot<T, T>,
    .dot_wide = dot<float, T>,
    .silu_mul = chassis::silu_mul<T>,
    .silu_mul_backward = chassis::silu_mul_backward<float, T>,
    .gelu_tanh_mul = chassis::gelu_tanh_mul<T>,
    .gelu_tanh_mul_backward = chassis::gelu_tanh_mul_backward<float, T>,
};

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops table = {kRowLoops<float>, kRowLoops<Bf16>};
  return table;
}

}  // namespace grouped
