// Loops that are built once for each instruction set, and the exponential that they share.
#include "tests/sdk/simd_loops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

const Loops& best_loops() {
  return chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
}

// Of what this processor runs, which is each set up to the best.
std::vector<const Loops*> all_loops() {
  std::vector<const Loops*> all = {&loops(chassis::isa::Baseline{})};
#if defined(__x86_64__)
  if (best_loops().vector_bytes >= 32) all.push_back(&loops(chassis::isa::Avx2{}));
  if (best_loops().vector_bytes >= 64) all.push_back(&loops(chassis::isa::Avx512{}));
#endif
  return all;
}

TEST(Simd, TheBestLoopsAreOfTheWidestVectors) {
  int widest = 0;
  for (const Loops* loops : all_loops()) widest = std::max(widest, loops->vector_bytes);
  EXPECT_EQ(best_loops().vector_bytes, widest);
  EXPECT_EQ(&best_loops(), all_loops().back());
}

TEST(Simd, ExponentialEndsAtZeroAndAtTheLargestPower) {
  const std::vector<float> x = {-INFINITY, -1e30f, -88.0f, 0.0f, 88.0f, 1e30f, INFINITY};
  for (const Loops* loops : all_loops()) {
    std::vector<float> y(x.size());
    loops->exponentials(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f) << x[static_cast<size_t>(i)];
    EXPECT_EQ(y[3], 1.0f);
    EXPECT_EQ(y[5], y[4]);
    EXPECT_EQ(y[6], y[4]);
  }
}

}  // namespace
