// Built once for each instruction set, with ThisIsa as its tag.
#include "tests/sdk/simd_loops.hpp"

namespace {

void exponentials(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = chassis::exponential(x[i]);
}

void tangents(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = chassis::hyperbolic_tangent(x[i]);
}

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops table = {chassis::ThisIsa::kVectorBytes, exponentials, tangents};
  return table;
}
