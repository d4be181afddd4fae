#include "host/data/mixture.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace chassis {
namespace {

TEST(Mixture, AlwaysStaysCloseToTheShares) {
  const std::vector<double> shares = {5, 1, 0.01, 3};
  const double sum = 9.01;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Mixture mixture(shares, seed);
    std::vector<uint64_t> taken(4);
    for (int row = 1; row <= 20'000; ++row) {
      ++taken[mixture.next(taken)];
      for (size_t i = 0; i < 4; ++i) {
        ASSERT_LT(std::abs(static_cast<double>(taken[i]) - shares[i] / sum * row), 4.0)
            << "set " << i << " row " << row;
      }
    }
  }
}

TEST(Mixture, DependsOnlyOnTheCounts) {
  const std::vector<double> shares = {0.7, 0.3};
  const Mixture mixture(shares, 3), same(shares, 3);
  std::vector<uint64_t> taken(2);
  for (int row = 0; row < 500; ++row) {
    const size_t next = mixture.next(taken);
    ASSERT_EQ(next, same.next(taken));
    ++taken[next];
  }
  EXPECT_EQ(taken[0] + taken[1], 500u);
}

TEST(Mixture, SeedsDifferInTheFirstSet) {
  const std::vector<double> shares = {1, 1};
  int first = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) first += Mixture(shares, seed).next(std::vector<uint64_t>(2)) == 0;
  EXPECT_GT(first, 20);
  EXPECT_LT(first, 80);
}

}  // namespace
}  // namespace chassis
