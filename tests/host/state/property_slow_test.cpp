// 10^5 random cases of each property.
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

TEST(ManyRandomLayouts, PlaceEveryElementExactlyOnce) { repeat(10'000'000, 100'000, check_layout); }
TEST(ManyRandomLayouts, ReturnEveryElementAfterARoundTrip) { repeat(20'000'000, 100'000, check_round_trip); }
TEST(ManyRandomLayouts, AreReportedWithTheFirstWrongElementIfDamaged) {
  repeat(30'000'000, 100'000, check_damaged_cover);
}
TEST(ManyRandomLayouts, AreReshardedWithinABudget) { repeat(50'000'000, 100'000, check_reshard); }
TEST(ManyRandomLayouts, AreExchangedInLittleMoreMemoryThanTheyNeed) { repeat(80'000'000, 100'000, check_move_order); }
TEST(ManyRandomSizes, MoveInAnOrderThatKeepsTheFullestRankLow) {
  repeat(90'000'000, 100'000, check_move_order_of_sizes);
}
TEST(ManyRandomLayouts, KeepComponentsWithTheirElements) { repeat(40'000'000, 100'000, check_composite); }

}  // namespace
}  // namespace chassis::testing
