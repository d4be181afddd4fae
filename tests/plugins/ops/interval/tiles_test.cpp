// The tiles of every instruction set, compared with loops in fp64.
#include "plugins/ops/interval/tiles.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/every_isa.hpp"

namespace interval {
namespace {

// Calls check(tiles) with the tiles of every instruction set.
template <typename Check>
void for_every_table(Check&& check) {
  size_t number = 0;
  for (const Tiles* table : chassis::test::tables_of_every_isa([](auto isa) -> const Tiles& { return tiles(isa); })) {
    SCOPED_TRACE(testing::Message() << "instruction set " << ++number);
    check(*table);
  }
}

class IntervalTiles : public testing::Test {
 protected:
  std::vector<float> row(size_t n, float spread = 1) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(n);
    for (float& x : out) x = normal(generator_);
    return out;
  }

 private:
  std::mt19937 generator_{13};
};

double wide(float x) { return static_cast<double>(x); }

// Tiles of all heights, whole vectors of columns and a tail; the matrix a by rows and by columns.
TEST_F(IntervalTiles, Products) {
  constexpr float kUntouched = 1234.5f;
  for_every_table([&](const Tiles& tiles) {
    for (const size_t m : {1u, 2u, 5u, 6u, 13u})
      for (const size_t n : {1u, 3u, 4u, 8u, 17u, 37u, 131u})
        for (const size_t k : {1u, 20u, 33u})
          for (const bool add : {false, true})
            for (const bool by_columns : {false, true}) {
              SCOPED_TRACE(testing::Message() << m << " × " << n << " × " << k << (add ? ", added" : "")
                                              << (by_columns ? ", a by columns" : ""));
              const size_t ldb = n + 3, ldc = n + 5;
              const size_t a_row = by_columns ? 1 : k + 2, a_col = by_columns ? m + 2 : 1;
              const auto a = row(m * a_row + k * a_col), b = row(k * ldb), before = row(m * ldc);
              std::vector<float> c(m * ldc, kUntouched);
              for (size_t i = 0; i < m; ++i)
                for (size_t j = 0; j < n; ++j) c[i * ldc + j] = before[i * ldc + j];
              tiles.product(static_cast<int64_t>(m), static_cast<int64_t>(n), static_cast<int64_t>(k), a.data(),
                            static_cast<int64_t>(a_row), static_cast<int64_t>(a_col), b.data(),
                            static_cast<int64_t>(ldb), c.data(), static_cast<int64_t>(ldc), add);
              for (size_t i = 0; i < m; ++i)
                for (size_t j = 0; j < ldc; ++j) {
                  const float got = c[i * ldc + j];
                  if (j >= n) {
                    ASSERT_EQ(got, kUntouched) << "[" << i << ", " << j << "] is no part of c";
                    continue;
                  }
                  double sum = add ? wide(before[i * ldc + j]) : 0, size = std::abs(sum);
                  for (size_t p = 0; p < k; ++p) {
                    const double term = wide(a[i * a_row + p * a_col]) * wide(b[p * ldb + j]);
                    sum += term, size += std::abs(term);
                  }
                  ASSERT_NEAR(wide(got), sum, size * 0x1p-20) << "[" << i << ", " << j << "]";
                }
            }
  });
}

struct Interval {
  size_t n;
  int64_t lo, hi;
  bool has(size_t i) const { return static_cast<int64_t>(i) >= lo && static_cast<int64_t>(i) < hi; }
};
// The last two belong to queries that see no key. The interval of a padding query may be before the first key.
constexpr Interval kIntervals[] = {{1, 0, 1},     {37, 0, 37},   {37, 3, 30},  {128, 16, 128},
                                   {777, 5, 760}, {128, 77, 78}, {37, 12, 12}, {37, -4, -4}};

TEST_F(IntervalTiles, SoftmaxAndProbabilitiesOverAnInterval) {
  for_every_table([&](const Tiles& tiles) {
    for (const Interval& in : kIntervals)
      for (const float scale : {0.125f, 3.0f}) {
        SCOPED_TRACE(testing::Message() << "[" << in.lo << ", " << in.hi << ") of " << in.n << ", scale " << scale);
        const auto scores = row(in.n, 4);
        const auto n = static_cast<int64_t>(in.n);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (size_t i = 0; i < in.n; ++i)
          if (in.has(i)) largest = std::max(largest, wide(scale) * wide(scores[i]));
        for (size_t i = 0; i < in.n; ++i)
          if (in.has(i)) sum += std::exp(wide(scale) * wide(scores[i]) - largest);
        const double exact = in.hi > in.lo ? largest + std::log(sum) : 0;

        auto softmax = scores, probabilities = scores;
        const float lse = tiles.softmax(softmax.data(), n, in.lo, in.hi, scale);
        ASSERT_NEAR(wide(lse), exact, (1 + std::abs(exact)) * 0x1p-20);
        tiles.probabilities(probabilities.data(), n, in.lo, in.hi, scale, lse);
        for (size_t i = 0; i < in.n; ++i) {
          const double score = wide(scale) * wide(scores[i]), p = in.has(i) ? std::exp(score - exact) : 0;
          const double bound = p * (1 + std::abs(score) + std::abs(exact)) * 0x1p-20 + (in.has(i) ? 1e-37 : 0);
          ASSERT_NEAR(wide(softmax[i]), p, bound) << "softmax[" << i << "]";
          ASSERT_NEAR(wide(probabilities[i]), p, bound) << "probabilities[" << i << "]";
        }
      }
  });
}

TEST_F(IntervalTiles, CapsAndTheirSlopesOverAnInterval) {
  for_every_table([&](const Tiles& tiles) {
    for (const Interval& in : kIntervals) {
      if (in.lo < 0) continue;
      for (const float cap : {1.5f, 50.0f}) {
        SCOPED_TRACE(testing::Message() << "[" << in.lo << ", " << in.hi << ") of " << in.n << ", cap " << cap);
        const auto scores = row(in.n, 8), before = row(in.n);
        auto capped = scores, alone = scores, slope = before, weighted = scores;
        tiles.softcap(capped.data(), slope.data(), in.lo, in.hi, 0.3f, cap);
        tiles.softcap(alone.data(), nullptr, in.lo, in.hi, 0.3f, cap);
        EXPECT_EQ(alone, capped) << "without a slope";
        tiles.multiply(weighted.data(), slope.data(), in.lo, in.hi);
        for (size_t i = 0; i < in.n; ++i) {
          if (!in.has(i)) {
            ASSERT_EQ(capped[i], scores[i]) << i;
            ASSERT_EQ(slope[i], before[i]) << i;
            ASSERT_EQ(weighted[i], scores[i]) << i;
            continue;
          }
          const double t = std::tanh(wide(scores[i]) * wide(0.3f) / wide(cap));
          ASSERT_NEAR(wide(capped[i]), wide(cap) * t, wide(cap) * std::abs(t) * 0x1p-20) << i;
          ASSERT_NEAR(wide(slope[i]), 1 - t * t, 0x1p-20) << i;
          ASSERT_NEAR(wide(weighted[i]), wide(scores[i]) * wide(slope[i]), std::abs(wide(scores[i])) * 0x1p-20) << i;
        }
      }
    }
  });
}

TEST_F(IntervalTiles, ScoreGradientsAndDots) {
  for_every_table([&](const Tiles& tiles) {
    for (const size_t n : {1u, 5u, 16u, 37u, 128u, 777u}) {
      SCOPED_TRACE(testing::Message() << n << " elements");
      const auto p = row(n), dp = row(n);
      const float delta = 0.375f, scale = 0.2f;
      auto gradient = p;
      tiles.score_gradient(gradient.data(), dp.data(), static_cast<int64_t>(n), delta, scale);
      double dot = 0, size = 0;
      for (size_t i = 0; i < n; ++i) {
        const double exact = wide(p[i]) * (wide(dp[i]) - wide(delta)) * wide(scale);
        const double terms = std::abs(wide(p[i])) * (std::abs(wide(dp[i])) + wide(delta)) * wide(scale);
        ASSERT_NEAR(wide(gradient[i]), exact, terms * 0x1p-20) << i;
        dot += wide(p[i]) * wide(dp[i]), size += std::abs(wide(p[i]) * wide(dp[i]));
      }
      ASSERT_NEAR(wide(tiles.fp32.dot(p.data(), dp.data(), static_cast<int64_t>(n))), dot, size * 0x1p-20);
    }
  });
}

}  // namespace
}  // namespace interval
