// How the kernels are launched, as seen on the CPU; and 16-bit dtypes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "plugins/ops/cuda_rms_norm/kernels.hpp"

namespace {

using cuda_rms_norm::Dtype;
using cuda_rms_norm::Problem;

TEST(CudaRmsNormLaunch, UsesTheStreamOfTheCall) {
  float x = 1, y = 0, inverse = 0;
  int streams[3];
  Problem problem{0, &streams[0], Dtype::kF32, Dtype::kF32, 1, 1, 0};
  const auto expect_stream = [&] { EXPECT_EQ(cuda_on_cpu::last_stream(), static_cast<cudaStream_t>(problem.stream)); };
  ASSERT_EQ(cuda_rms_norm::forward(problem, &x, &x, &y, &inverse), nullptr);
  expect_stream();
  problem.stream = &streams[1];
  ASSERT_EQ(cuda_rms_norm::backward_input(problem, &x, &x, &inverse, &x, &y, false), nullptr);
  expect_stream();
  problem.stream = &streams[2];
  float partial = 0;
  ASSERT_EQ(cuda_rms_norm::backward_weight(problem, &x, &inverse, &x, &partial, &y, 0), nullptr);
  expect_stream();
}

TEST(CudaRmsNormLaunch, UsesTheDeviceOfTheCall) {
  float x = 1, y = 0, inverse = 0, partial = 0;
  const Problem second{1, nullptr, Dtype::kF32, Dtype::kF32, 1, 1, 0};
  const auto expect_second = [] {
    EXPECT_EQ(cuda_on_cpu::last_device(), 1);
    int device = -1;
    cudaGetDevice(&device);
    EXPECT_EQ(device, 0) << "is current again";
  };
  ASSERT_EQ(cuda_rms_norm::forward(second, &x, &x, &y, &inverse), nullptr);
  expect_second();
  ASSERT_EQ(cuda_rms_norm::backward_input(second, &x, &x, &inverse, &x, &y, false), nullptr);
  expect_second();
  ASSERT_EQ(cuda_rms_norm::backward_weight(second, &x, &inverse, &x, &partial, &y, 0), nullptr);
  expect_second();
}

TEST(CudaRmsNormLaunch, ReportsWhatCudaRefuses) {
  float value = 0;
  const Problem other_device{2, nullptr, Dtype::kF32, Dtype::kF32, 1, 1, 0};
  EXPECT_STREQ(cuda_rms_norm::forward(other_device, &value, &value, &value, nullptr), "invalid device ordinal");
  EXPECT_STREQ(cuda_rms_norm::backward_weight(other_device, &value, &value, &value, &value, &value, 0),
               "invalid device ordinal");
  const Problem empty{0, nullptr, Dtype::kF32, Dtype::kF32, 0, 1, 0};
  EXPECT_EQ(cuda_rms_norm::forward(empty, &value, &value, &value, nullptr), nullptr);
}

TEST(CudaRmsNormLaunch, ScalesTheWeightGradientWithoutRows) {
  float dweight[2] = {3, 5}, partial[2];
  const Problem empty{0, nullptr, Dtype::kF32, Dtype::kF32, 0, 2, 0};
  ASSERT_EQ(cuda_rms_norm::backward_weight(empty, nullptr, nullptr, nullptr, partial, dweight, 0.5f), nullptr);
  EXPECT_EQ(dweight[0], 1.5f);
  EXPECT_EQ(dweight[1], 2.5f);
}

// y = cast(x · inverse) · weight: both roundings.
template <typename T>
void rounds_twice(Dtype dtype) {
  constexpr int64_t kN = 70;
  std::vector<T> x, weight, y(kN);
  double squares = 0;
  for (int64_t i = 0; i < kN; ++i) {
    x.push_back(static_cast<T>(std::sin(static_cast<float>(i))));
    weight.push_back(static_cast<T>(1 + std::cos(static_cast<float>(i)) / 2));
    squares += std::pow(static_cast<float>(x.back()), 2);
  }
  const Problem problem{0, nullptr, dtype, dtype, 1, kN, 0};
  ASSERT_EQ(cuda_rms_norm::forward(problem, x.data(), weight.data(), y.data(), nullptr), nullptr);
  const auto inverse = static_cast<float>(1 / std::sqrt(squares / kN));
  int num_different = 0;  // where the inverse has another last bit
  for (size_t i = 0; i < kN; ++i) {
    const T normal = static_cast<T>(static_cast<float>(x[i]) * inverse);
    num_different += y[i].bits != static_cast<T>(static_cast<float>(normal) * static_cast<float>(weight[i])).bits;
  }
  EXPECT_LE(num_different, 1);
}

TEST(CudaRmsNormLaunch, RoundsTheNormalizedRowAndTheProduct) {
  rounds_twice<__half>(Dtype::kF16);
  rounds_twice<__nv_bfloat16>(Dtype::kBF16);
}

}  // namespace
