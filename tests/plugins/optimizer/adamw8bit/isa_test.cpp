// Every instruction set gives the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <type_traits>
#include <vector>

#include "blocks.hpp"

namespace adamw8bit {
namespace {

struct State {
  std::vector<float> param, average_absmax, square_absmax, exp_avg, exp_avg_sq;
  std::vector<uint8_t> average, square;
  bool operator==(const State&) const = default;
};

State stepped(const Loops& loops, Order order) {
  constexpr int64_t kCount = 40 * kBlock + 77;
  const Codes signed_code(chassis::dynamic_signed_code(), true, 6);
  const Codes unsigned_code(chassis::dynamic_unsigned_code(), false, 7);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  State state;
  for (int64_t i = 0; i < kCount; ++i) state.param.push_back(normal(random));
  state.average_absmax.resize(kCount / kBlock + 1);
  state.square_absmax.resize(kCount / kBlock + 1);
  state.average.assign(kCount, chassis::kDynamicSignedZero);
  state.square.assign(kCount, chassis::kDynamicUnsignedZero);
  state.exp_avg.resize(kCount), state.exp_avg_sq.resize(kCount);
  for (int64_t step = 1; step <= 5; ++step) {
    std::vector<float> grad(kCount);
    for (float& g : grad) g = normal(random) * std::exp2(20 * normal(random));
    grad[3] = NAN, grad[700] = INFINITY;
    const Coefficients k = {0.9f, 0.1f, 0.999f, 0.001f, 1e-9f, -1e-3f, 0.9999f, 0.37f, static_cast<int32_t>(order)};
    loops.step_blocks({state.param.data(), grad.data(), state.average.data(), state.square.data(),
                       state.average_absmax.data(), state.square_absmax.data()},
                      0, kCount, k, order, signed_code.table(), unsigned_code.table());
    grad[3] = grad[700] = 1;
    const chassis::AdamWSettings settings;
    if (order == Order::kTorch)
      loops.step_fp32(state.param.data(), grad.data(), state.exp_avg.data(), state.exp_avg_sq.data(), kCount,
                      chassis::AdamWCoefficients::of(settings, step, 1e-3, 0.1, 0.37));
    else
      loops.step_fp32_bnb(state.param.data(), grad.data(), state.exp_avg.data(), state.exp_avg_sq.data(), kCount, k);
  }
  return state;
}

TEST(AdamW8bitInstructionSets, GiveTheSameBits) {
#if defined(__x86_64__)
  for (const Order order : {Order::kTorch, Order::kBnb}) {
    const State baseline = stepped(loops(chassis::isa::Baseline{}), order);
    chassis::for_best_isa([&](auto isa) {
      if constexpr (!std::is_same_v<decltype(isa), chassis::isa::Baseline>) {
        EXPECT_EQ(stepped(loops(chassis::isa::Avx2{}), order), baseline);
      }
      if constexpr (std::is_same_v<decltype(isa), chassis::isa::Avx512>) {
        EXPECT_EQ(stepped(loops(chassis::isa::Avx512{}), order), baseline);
      }
    });
  }
#else
  GTEST_SKIP() << "one instruction set";
#endif
}

}  // namespace
}  // namespace adamw8bit
