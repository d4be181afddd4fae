// The kernels against the loops of the CPU, bit by bit; needs a GPU, or runs on the CPU.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "blocks.hpp"
#include "device.hpp"
#include "tests/support/on_device.hpp"

namespace adamw8bit {
namespace {

using chassis::test::OnDevice;

constexpr int64_t kCount = 40 * kBlock + 77;

struct State {
  std::vector<float> param, average_absmax, square_absmax, exp_avg, exp_avg_sq;
  std::vector<uint8_t> average, square;
};

struct Case {
  Order order;
  bool is_fp32;
  int32_t smallest_square;
  bool is_scaled;  // by a factor on the device
};

float device_scale_of(const Case& c) { return c.is_scaled ? 0.25f : 1.0f; }

// Exact, so that the loops get the product of both factors.
Coefficients coefficients_of(const Case& c, float scale) {
  return {0.9f, 0.1f, 0.999f, 0.001f, 1e-9f, -1e-3f, 0.9999f, 0.37f * scale, c.smallest_square};
}

std::vector<float> gradient_of(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> grad(kCount);
  for (float& g : grad) g = normal(random) * std::exp2(20 * normal(random));
  grad[5] = 0, grad[6] = -0.0f, grad[1024] = 1e-42f, grad[kCount - 1] = -3e5f;
  if (!c.is_fp32) grad[3] = NAN, grad[700] = INFINITY;
  return grad;
}

State initial_state() {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  State s;
  for (int64_t i = 0; i < kCount; ++i) s.param.push_back(normal(random));
  s.average_absmax.resize(kCount / kBlock + 1), s.square_absmax.resize(kCount / kBlock + 1);
  s.average.assign(kCount, chassis::kDynamicSignedZero), s.square.assign(kCount, chassis::kDynamicUnsignedZero);
  s.exp_avg.resize(kCount), s.exp_avg_sq.resize(kCount);
  return s;
}

constexpr int kSteps = 5;

chassis::AdamWCoefficients fp32_coefficients(int64_t step, float scale) {
  return chassis::AdamWCoefficients::of(chassis::AdamWSettings{}, step, 1e-3, 0.1, 0.37 * scale);
}

State stepped_on_cpu(const Case& c, const Codes& signed_code, const Codes& unsigned_code) {
  State s = initial_state();
  const Loops& cpu = loops(chassis::isa::Baseline{});
  const Coefficients k = coefficients_of(c, device_scale_of(c));
  std::mt19937 random(5);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> grad = gradient_of(c, random);
    if (!c.is_fp32)
      cpu.step_blocks({s.param.data(), grad.data(), s.average.data(), s.square.data(), s.average_absmax.data(),
                       s.square_absmax.data()},
                      0, kCount, k, c.order, signed_code.table(), unsigned_code.table());
    else if (c.order == Order::kTorch)
      cpu.step_fp32(s.param.data(), grad.data(), s.exp_avg.data(), s.exp_avg_sq.data(), kCount,
                    fp32_coefficients(step, device_scale_of(c)));
    else
      cpu.step_fp32_bnb(s.param.data(), grad.data(), s.exp_avg.data(), s.exp_avg_sq.data(), kCount, k);
  }
  return s;
}

State stepped_on_device(const Case& c, const std::vector<float>& tables) {
  const State initial = initial_state();
  const OnDevice<float> param(initial.param), average_absmax(initial.average_absmax),
      square_absmax(initial.square_absmax), exp_avg(initial.exp_avg), exp_avg_sq(initial.exp_avg_sq),
      scale(std::vector<float>{device_scale_of(c)});
  const OnDevice<uint8_t> average(initial.average), square(initial.square);
  const float* device_scale = c.is_scaled ? scale.data() : nullptr;
  const Coefficients k = coefficients_of(c, 1);
  DeviceCodes codes;
  std::mt19937 random(5);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const OnDevice<float> grad(gradient_of(c, random));
    const chassis::AdamWCoefficients f = fp32_coefficients(step, 1);
    if (!c.is_fp32)
      step_blocks_on_device(
          {param.data(), grad.data(), average.data(), square.data(), average_absmax.data(), square_absmax.data()},
          kCount, k, c.order, codes.on(0, tables.data()), device_scale, nullptr);
    else if (c.order == Order::kTorch)
      step_fp32_on_device(param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), kCount,
                          {f.decay, f.one_minus_beta1, f.beta2, f.one_minus_beta2, f.sqrt_correction2, f.eps,
                           f.minus_step_size, f.grad_scale},
                          device_scale, nullptr);
    else
      step_fp32_bnb_on_device(param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), kCount, k, device_scale,
                              nullptr);
  }
  return {param.read(),      average_absmax.read(), square_absmax.read(), exp_avg.read(),
          exp_avg_sq.read(), average.read(),        square.read()};
}

void expect_same_bits(const std::vector<float>& got, const std::vector<float>& expected, const char* what) {
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " " << i << ": " << got[i] << ", expected " << expected[i];
}

void compare_with_cpu(const Case& c) {
  const Codes signed_code(chassis::dynamic_signed_code(), true, 6);
  const Codes unsigned_code(chassis::dynamic_unsigned_code(), false, 7);
  std::vector<float> tables(signed_code.table().values, signed_code.table().values + 256);
  tables.insert(tables.end(), unsigned_code.table().values, unsigned_code.table().values + 256);
  const State cpu = stepped_on_cpu(c, signed_code, unsigned_code), device = stepped_on_device(c, tables);
  expect_same_bits(device.param, cpu.param, "param");
  expect_same_bits(device.average_absmax, cpu.average_absmax, "average_absmax");
  expect_same_bits(device.square_absmax, cpu.square_absmax, "square_absmax");
  expect_same_bits(device.exp_avg, cpu.exp_avg, "exp_avg");
  expect_same_bits(device.exp_avg_sq, cpu.exp_avg_sq, "exp_avg_sq");
  EXPECT_EQ(device.average, cpu.average);
  EXPECT_EQ(device.square, cpu.square);
}

TEST(AdamW8bitGpu, StepsBlocksToTheBitsOfTheCpu) { compare_with_cpu({Order::kTorch, false, 0, false}); }
TEST(AdamW8bitGpu, StepsBlocksInTheOrderOfBitsandbytes) { compare_with_cpu({Order::kBnb, false, 0, true}); }
TEST(AdamW8bitGpu, KeepsSmallSquaresAboveZero) { compare_with_cpu({Order::kTorch, false, 1, true}); }
TEST(AdamW8bitGpu, StepsFp32StatesToTheBitsOfTheCpu) { compare_with_cpu({Order::kTorch, true, 0, true}); }
TEST(AdamW8bitGpu, StepsFp32StatesInTheOrderOfBitsandbytes) { compare_with_cpu({Order::kBnb, true, 0, true}); }

}  // namespace
}  // namespace adamw8bit
