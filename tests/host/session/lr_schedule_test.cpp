// Learning rates by step.
#include "host/session/lr_schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace chassis {
namespace {

LearningRateSchedule schedule(Curve curve) {
  return {.curve = curve, .peak = 2.0, .warmup_steps = 4, .decay_steps = 5, .min_ratio = 0.1, .max_steps = 20};
}

TEST(Schedule, StepKOfAWarmUpOfNStepsHasKNthsOfThePeak) {
  for (const Curve curve : {Curve::kConstant, Curve::kLinear, Curve::kCosine, Curve::kWsd})
    for (int64_t k = 1; k <= 4; ++k)
      EXPECT_DOUBLE_EQ(schedule(curve).at(k), 2.0 * static_cast<double>(k) / 4.0) << to_text(curve);
}

TEST(Schedule, EndsAtItsFinalValue) {
  EXPECT_DOUBLE_EQ(schedule(Curve::kConstant).at(20), 2.0);
  for (const Curve curve : {Curve::kLinear, Curve::kCosine, Curve::kWsd})
    EXPECT_NEAR(schedule(curve).at(20), 0.2, 1e-12) << to_text(curve);
}

TEST(Schedule, IsHalfWayDownInTheMiddle) {
  EXPECT_NEAR(schedule(Curve::kLinear).at(12), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(schedule(Curve::kCosine).at(12), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
  EXPECT_NEAR(schedule(Curve::kCosine).at(8), 2.0 * (0.1 + 0.9 * 0.5 * (1.0 + std::sqrt(0.5))), 1e-12);
}

TEST(Schedule, KnowsThatNoStepThatIsLeftHasARate) {
  for (const Curve curve : {Curve::kLinear, Curve::kCosine}) {
    const LearningRateSchedule one{.curve = curve, .peak = 2.0, .max_steps = 1};
    EXPECT_TRUE(one.is_zero_after(0)) << to_text(curve);
    LearningRateSchedule two = one;
    two.max_steps = 2;
    EXPECT_FALSE(two.is_zero_after(0)) << to_text(curve);
    EXPECT_TRUE(two.is_zero_after(1)) << to_text(curve);
    LearningRateSchedule above = one;
    above.min_ratio = 0.1;
    EXPECT_FALSE(above.is_zero_after(0)) << to_text(curve);
  }
  EXPECT_FALSE((LearningRateSchedule{.peak = 2.0}).is_zero_after(0));
  EXPECT_TRUE((LearningRateSchedule{.peak = 0.0, .max_steps = int64_t{1} << 60}).is_zero_after(0));
}

TEST(Schedule, WsdStaysUntilItsLastSteps) {
  EXPECT_DOUBLE_EQ(schedule(Curve::kWsd).at(15), 2.0);
  EXPECT_NEAR(schedule(Curve::kWsd).at(16), 2.0 * (0.1 + 0.9 * 0.8), 1e-12);
}

TEST(Schedule, NeverRisesAfterTheWarmUpAndNeverJumps) {
  for (const Curve curve : {Curve::kLinear, Curve::kCosine, Curve::kWsd})
    for (int64_t step = 5; step <= 20; ++step) {
      EXPECT_LE(schedule(curve).at(step), schedule(curve).at(step - 1)) << to_text(curve) << " " << step;
      EXPECT_LT(schedule(curve).at(step - 1) - schedule(curve).at(step), 0.45) << to_text(curve) << " " << step;
    }
}

TEST(Schedule, WithoutAWarmUpTheFirstStepIsNearThePeak) {
  LearningRateSchedule linear = schedule(Curve::kLinear);
  linear.warmup_steps = 0;
  EXPECT_NEAR(linear.at(1), 2.0 * (0.1 + 0.9 * 0.95), 1e-12);
}

TEST(Schedule, StaysAtItsFinalValueAfterTheLastStep) { EXPECT_NEAR(schedule(Curve::kCosine).at(30), 0.2, 1e-12); }

}  // namespace
}  // namespace chassis
