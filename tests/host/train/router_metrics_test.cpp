// The numbers that describe what a router chooses.
#include "host/train/router_metrics.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace chassis {
namespace {

// Four tokens with two of four experts each.
constexpr double kEven = 1.0;

TEST(RouterSums, EqualLoads) {
  const RouterSums sums{.counts = {2, 2, 2, 2}, .probabilities = {1, 1, 1, 1}};
  EXPECT_EQ(sums.num_tokens(), 4.0);
  EXPECT_EQ(sums.max_load(), kEven);
  EXPECT_EQ(sums.num_idle(), 0.0);
  EXPECT_DOUBLE_EQ(sums.entropy(), std::log(4.0));
  EXPECT_DOUBLE_EQ(sums.aux(), 2.0) << "the experts of a token";
}

TEST(RouterSums, AllTokensInTwoExperts) {
  const RouterSums sums{.counts = {4, 0, 4, 0}, .probabilities = {2, 0, 2, 0}};
  EXPECT_EQ(sums.max_load(), 2 * kEven);
  EXPECT_EQ(sums.num_idle(), 2.0);
  EXPECT_DOUBLE_EQ(sums.entropy(), std::log(2.0));
  EXPECT_DOUBLE_EQ(sums.aux(), 4.0);
}

TEST(RouterSums, WithoutTokens) {
  const RouterSums sums{.counts = {0, 0}, .probabilities = {0, 0}};
  EXPECT_EQ(sums.num_tokens(), 0.0);
  EXPECT_EQ(sums.max_load(), 0.0);
  EXPECT_EQ(sums.entropy(), 0.0);
  EXPECT_EQ(sums.aux(), 0.0);
}

}  // namespace
}  // namespace chassis
