// Divisions of units into stages, compared with brute force.
#include "host/state/stage_division.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "host/base/error.hpp"
#include "random_layout.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::testing {
namespace {

// The cost of the costliest stage, and the sum of squares.
using Quality = std::pair<double, double>;

Quality quality(const std::vector<double>& costs, const std::vector<UnitRange>& ranges) {
  Quality out{0, 0};
  for (const UnitRange& range : ranges) {
    double sum = 0;
    for (size_t unit = range.begin; unit < range.end; ++unit) sum += costs[unit];
    out.first = std::max(out.first, sum);
    out.second += sum * sum;
  }
  return out;
}

Quality best_quality(const std::vector<double>& costs, int num_stages, std::vector<UnitRange>& ranges) {
  const size_t begin = ranges.empty() ? 0 : ranges.back().end;
  Quality best{std::numeric_limits<double>::infinity(), 0};
  if (num_stages == 0) return begin == costs.size() ? quality(costs, ranges) : best;
  for (size_t end = begin + 1; end <= costs.size(); ++end) {
    ranges.push_back({begin, end});
    best = std::min(best, best_quality(costs, num_stages - 1, ranges));
    ranges.pop_back();
  }
  return best;
}

TEST(BalancedDivision, IsTheBestOfAll) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(seed);
    std::vector<double> costs(static_cast<size_t>(dice.roll(1, 10)));
    // Whole numbers, so that sums are exact.
    for (double& cost : costs) cost = static_cast<double>(dice.roll(0, dice.chance(20) ? 40 : 6));
    const int num_stages = static_cast<int>(dice.roll(1, std::min<int64_t>(5, static_cast<int64_t>(costs.size()))));
    const std::vector<UnitRange> ranges = balanced_division(costs, num_stages);
    ASSERT_EQ(ranges.size(), static_cast<size_t>(num_stages)) << seed;
    ASSERT_EQ(ranges.back().end, costs.size()) << seed;
    for (size_t stage = 0; stage < ranges.size(); ++stage) {
      ASSERT_GT(ranges[stage].size(), 0u) << seed;
      ASSERT_EQ(ranges[stage].begin, stage == 0 ? 0 : ranges[stage - 1].end) << seed;
    }
    std::vector<UnitRange> scratch;
    ASSERT_EQ(quality(costs, ranges), best_quality(costs, num_stages, scratch)) << seed;
  }
}

TEST(BalancedDivision, CountsEmbeddingAndHead) {
  // An embedding that costs little, 8 layers, and a head that costs as much as two layers.
  const std::vector<double> costs = {0.1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
  EXPECT_EQ(balanced_division(costs, 4), (std::vector<UnitRange>{{0, 3}, {3, 5}, {5, 8}, {8, 10}}));
}

TEST(BalancedDivision, IsEvenIfNoStageIsCostlier) {
  EXPECT_EQ(balanced_division(std::vector<double>{9, 1, 1, 1, 1}, 3), (std::vector<UnitRange>{{0, 1}, {1, 3}, {3, 5}}));
}

TEST(BalancedDivision, RefusesMoreStagesThanUnits) {
  try {
    balanced_division(std::vector<double>(6, 1.0), 8);
    FAIL();
  } catch (const Error& e) {
    EXPECT_HAS(e.what(), "the pipeline has 8 stages, the model has only 6 units to divide");
  }
}

std::string refusal_of(const std::vector<int64_t>& layers_per_stage) {
  try {
    given_division(layers_per_stage, 3, 7, {1, 6});
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(GivenDivision, PutsEmbeddingAndHeadIntoTheFirstAndTheLastStage) {
  EXPECT_EQ(given_division(std::vector<int64_t>{1, 3, 1}, 3, 7, {1, 6}),
            (std::vector<UnitRange>{{0, 2}, {2, 5}, {5, 7}}));
  EXPECT_EQ(given_division(std::vector<int64_t>{0, 5, 0}, 3, 7, {1, 6}),
            (std::vector<UnitRange>{{0, 1}, {1, 6}, {6, 7}}));
}

TEST(GivenDivision, IsRefusedWithBothNumbers) {
  EXPECT_HAS(refusal_of({2, 3}), "layers_per_stage has 2 numbers, the pipeline has 3 stages");
  EXPECT_HAS(refusal_of({2, 2, 2}), "layers_per_stage adds up to 6 layers, the model has 5");
  EXPECT_HAS(refusal_of({6, -2, 1}), "layers_per_stage[1] is -2; the model has 5 layers");
  EXPECT_HAS(refusal_of({2, 0, 3}), "layers_per_stage[1] is 0, so that stage 1 of 3 has no unit");
  EXPECT_HAS(refusal_of({std::numeric_limits<int64_t>::max(), 1, 1}), "layers_per_stage[1] is 1");
}

}  // namespace
}  // namespace chassis::testing
