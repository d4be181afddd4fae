// Loops built once for each instruction set, and the functions that they use.
#include "tests/sdk/simd_loops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace {

const Loops& best_loops() {
  return chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
}

// The loops that this processor can run: every instruction set up to the best one.
std::vector<const Loops*> all_loops() {
  std::vector<const Loops*> all = {&loops(chassis::isa::Baseline{})};
#if defined(__x86_64__)
  if (best_loops().vector_bytes >= 32) all.push_back(&loops(chassis::isa::Avx2{}));
  if (best_loops().vector_bytes >= 64) all.push_back(&loops(chassis::isa::Avx512{}));
#endif
  return all;
}

TEST(Simd, TheBestLoopsHaveTheWidestVectors) {
  int widest = 0;
  for (const Loops* loops : all_loops()) widest = std::max(widest, loops->vector_bytes);
  EXPECT_EQ(best_loops().vector_bytes, widest);
  EXPECT_EQ(&best_loops(), all_loops().back());
}

TEST(Simd, ExponentialIsWithinTwoUlp) {
  std::vector<float> x;
  for (float value = -87.0f; value <= 88.0f; value += 0.0007f) x.push_back(value);
  for (const Loops* loops : all_loops()) {
    std::vector<float> y(x.size());
    loops->exponentials(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float exact = static_cast<float>(std::exp(static_cast<double>(x[i])));
      const double ulp = static_cast<double>(std::nextafter(exact, INFINITY)) - exact;
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp);
    }
    EXPECT_LE(worst, 2.0) << loops->vector_bytes;
  }
}

TEST(Simd, ExponentialIsClampedToZeroAndTheLargestValue) {
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

TEST(Simd, HyperbolicTangentIsWithinFourUlp) {
  std::vector<float> x = {0.0f, 1e-30f, -1e-30f, 0.625f, -0.625f, 9.0f, 100.0f, -100.0f};
  for (float value = -10.0f; value <= 10.0f; value += 0.00013f) x.push_back(value);
  for (const Loops* loops : all_loops()) {
    std::vector<float> y(x.size());
    loops->tangents(x.data(), y.data(), static_cast<int64_t>(x.size()));
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::tanh(static_cast<double>(x[i]));
      const float size = std::abs(static_cast<float>(exact));
      const double ulp = static_cast<double>(std::nextafter(size, 2.0f)) - size;
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - exact) / ulp);
    }
    EXPECT_LE(worst, 4.0) << loops->vector_bytes;
  }
}

}  // namespace
