// The kernels against a loop in double on the CPU; needs a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "plugins/ops/cuda_rms_norm/kernels.hpp"
#include "tests/support/on_device.hpp"

namespace {

using chassis::test::OnDevice;
using cuda_rms_norm::Dtype;
using cuda_rms_norm::Problem;

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& v : out) v = normal(generator);
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& expected, double tolerance) {
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << i;
}

void compare_with_cpu(int64_t num_rows, int64_t n) {
  const Problem problem{0, nullptr, Dtype::kF32, Dtype::kF32, num_rows, n, 1e-5f};
  const auto x = random_values(num_rows * n, 1), weight = random_values(n, 2), dy = random_values(num_rows * n, 3);
  std::vector<double> y(x.size()), dx(x.size()), dweight(n, 0.0), twice(x.size());
  for (int64_t r = 0; r < num_rows; ++r) {
    double squares = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(x[r * n + i]) * x[r * n + i];
    const double inverse = 1 / std::sqrt(squares / n + 1e-5);
    for (int64_t i = 0; i < n; ++i) dot += double(dy[r * n + i]) * weight[i] * x[r * n + i] * inverse;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = r * n + i;
      y[at] = x[at] * inverse * weight[i];
      dx[at] = inverse * (double(dy[at]) * weight[i] - x[at] * inverse * dot / n);
      twice[at] = 2 * dx[at];
      dweight[i] += dy[at] * x[at] * inverse;
    }
  }
  const OnDevice d_x(x), d_weight(weight), d_dy(dy), d_y(x), d_dx(x);
  const OnDevice d_inverse{std::vector<float>(num_rows)};
  const OnDevice d_dweight(std::vector<float>(n, 1.0f));
  const OnDevice d_partial(std::vector<float>(cuda_rms_norm::num_partials(num_rows) * n));
  ASSERT_EQ(cuda_rms_norm::forward(problem, d_x.data(), d_weight.data(), d_y.data(), d_inverse.data()), nullptr);
  expect_near(d_y.read(), y, 1e-5);
  for (bool add : {false, true}) {
    ASSERT_EQ(cuda_rms_norm::backward_input(problem, d_x.data(), d_weight.data(), d_inverse.data(), d_dy.data(),
                                            d_dx.data(), add),
              nullptr);
    expect_near(d_dx.read(), add ? twice : dx, 1e-5);
  }
  for (float beta : {0.0f, 1.0f}) {
    ASSERT_EQ(cuda_rms_norm::backward_weight(problem, d_x.data(), d_inverse.data(), d_dy.data(), d_partial.data(),
                                             d_dweight.data(), beta),
              nullptr);
    if (beta == 1) {
      for (double& d : dweight) d *= 2;
    }
    expect_near(d_dweight.read(), dweight, 1e-4);
  }
}

TEST(CudaRmsNorm, AgreesWithALoopInDouble) { compare_with_cpu(37, 384); }
TEST(CudaRmsNorm, TakesRowsShorterThanABlockAndNotAMultipleOfAWarp) { compare_with_cpu(3, 17); }
TEST(CudaRmsNorm, SumsTheWeightGradientOverManyRows) { compare_with_cpu(5000, 64); }

}  // namespace
