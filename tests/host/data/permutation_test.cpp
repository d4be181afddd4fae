#include "host/data/permutation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace chassis {
namespace {

TEST(Permutation, VisitsEveryPositionOnce) {
  std::vector<uint64_t> sizes = {1000, 4095, 4096, 4097, 100'003};
  for (uint64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const Permutation order(size, 42, 1, epoch);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t value = order(i);
        ASSERT_LT(value, size);
        ASSERT_FALSE(seen[value]) << size;
        seen[value] = true;
      }
    }
  }
}

TEST(Permutation, DependsOnSeedStreamAndEpoch) {
  const uint64_t size = 10'000;
  const Permutation order(size, 1, 2, 3), same(size, 1, 2, 3);
  const Permutation others[] = {{size, 9, 2, 3}, {size, 1, 9, 3}, {size, 1, 2, 9}};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(order(i), same(i));
  for (const Permutation& other : others) {
    int equal = 0;
    for (uint64_t i = 0; i < size; ++i) equal += order(i) == other(i);
    EXPECT_LT(equal, 20);  // 1 is expected by chance
  }
}

TEST(Permutation, LooksRandom) {
  // Over many seeds each of 6 documents is first about equally often, and neighbours do not stay neighbours.
  std::vector<int> first(6);
  for (uint64_t seed = 0; seed < 60'000; ++seed) ++first[Permutation(6, seed, 0, 0)(0)];
  for (int count : first) EXPECT_NEAR(count, 10'000, 500);
  const uint64_t size = 1'000'003;
  const Permutation order(size, 5, 0, 0);
  double distance = 0;
  for (uint64_t i = 0; i + 1 < 100'000; ++i) {
    distance += std::abs(static_cast<double>(order(i)) - static_cast<double>(order(i + 1)));
  }
  EXPECT_NEAR(distance / 1e5 / static_cast<double>(size), 1.0 / 3, 0.01);
}

TEST(Permutation, KeepsItsOrderBetweenVersions) {
  // Recorded from the first version. Resumed runs depend on these numbers, so they must never change.
  const Permutation order(1000, 42, 0, 0);
  const uint64_t expected[] = {526, 284, 117, 512, 268};
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(order(i), expected[i]);
}

TEST(Permutation, WorksForHugeSizes) {
  const uint64_t size = (uint64_t{1} << 61) + 12345;
  const Permutation order(size, 1, 0, 0);
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_LT(order(size - 1 - i), size);
}

}  // namespace
}  // namespace chassis
