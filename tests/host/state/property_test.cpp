// Properties of random layouts over 1 to 64 ranks, with fixed seeds. property_slow_test.cpp checks 10^5 of each.
#include <gtest/gtest.h>

#include "tests/host/state/properties.hpp"

namespace chassis::testing {
namespace {

template <class Check>
void repeat(uint64_t first_seed, uint64_t num_cases, Check check) {
  for (uint64_t k = 0; k < num_cases; ++k) {
    check(first_seed + k);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(RandomLayouts, PlaceEveryElementExactlyOnce) { repeat(1'000'000, 4000, check_layout); }
TEST(RandomLayouts, OfEqualKeysHaveEqualBoxes) {
  int num_equal = 0;
  repeat(7'000'000, 4000, [&](uint64_t seed) { num_equal += check_key(seed); });
  EXPECT_GT(num_equal, 1500);
}
TEST(RandomLayouts, ReturnEveryElementAfterARoundTrip) { repeat(2'000'000, 2000, check_round_trip); }
TEST(RandomLayouts, AreReportedWithTheFirstWrongElementIfDamaged) { repeat(3'000'000, 2000, check_damaged_cover); }
TEST(RandomLayouts, AreReshardedWithinABudget) { repeat(5'000'000, 1000, check_reshard); }
TEST(RandomLayouts, AreExchangedInLittleMoreMemoryThanTheyNeed) { repeat(8'000'000, 1000, check_move_order); }
TEST(RandomSizes, MoveInAnOrderThatKeepsTheFullestRankLow) { repeat(9'000'000, 1000, check_move_order_of_sizes); }
TEST(RandomLayouts, KeepComponentsWithTheirElements) { repeat(4'000'000, 1000, check_composite); }

}  // namespace
}  // namespace chassis::testing
