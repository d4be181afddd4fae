// Compares a series of numbers, such as the losses of a run, with another one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace chassis::test {

// The largest relative difference; infinite if a number is NaN. Both series must have the same length.
inline double largest_relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double largest = 0.0;
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] == theirs[i]) continue;
    const double difference = std::abs(ours[i] - theirs[i]) / std::abs(theirs[i]);
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest;
}

}  // namespace chassis::test
