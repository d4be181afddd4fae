// Comparisons of the numbers and weights of two runs with objectives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/regress/objective_run.hpp"

namespace chassis::test {

inline constexpr double kTolerance = 2e-6;

// The largest difference of two elements, in units of the largest element if that is above 1.
inline double distance(const std::vector<float>& got, const std::vector<float>& wanted) {
  double largest = 1, difference = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max<double>(largest, std::abs(wanted[i]));
    difference = std::max<double>(difference, std::abs(got.at(i) - wanted[i]));
  }
  return difference / largest;
}

inline void expect_close(const std::map<std::string, double>& got, const std::map<std::string, double>& wanted) {
  for (const auto& [name, value] : wanted) {
    if (name.ends_with("_ms") || name.ends_with("_bytes") || name == "tokens_per_s" || name == "seconds" ||
        name.starts_with("comm/"))
      continue;
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_NEAR(got.at(name), value, kTolerance * std::max(1.0, std::abs(value)) * 10) << name;
  }
}

inline void expect_same(const ObjectiveRun::Result& got, const ObjectiveRun::Result& wanted) {
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) {
    SCOPED_TRACE("step " + std::to_string(i + 1));
    EXPECT_NEAR(got.steps[i].at("loss"), wanted.steps[i].at("loss"),
                kTolerance * std::max(1.0, wanted.steps[i].at("loss")));
    expect_close(got.steps[i], wanted.steps[i]);
  }
  ASSERT_EQ(got.evaluations.size(), wanted.evaluations.size());
  for (size_t i = 0; i < got.evaluations.size(); ++i) expect_close(got.evaluations[i], wanted.evaluations[i]);
  ASSERT_EQ(got.tensors.size(), wanted.tensors.size());
  for (const auto& [name, values] : wanted.tensors)
    EXPECT_LE(distance(got.tensors.at(name), values), kTolerance) << name;
}

}  // namespace chassis::test
