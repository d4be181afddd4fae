// Sums of few rows, with every instruction set, compared with sums in fp64.
#include "plugins/quant/bnb4/rows.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "plugins/quant/bnb4/tables.hpp"

namespace bnb4 {
namespace {

std::vector<const RowLoops*> variants() {
  std::vector<const RowLoops*> all = {&row_loops(chassis::isa::Baseline{})};
#if defined(__x86_64__)
  chassis::for_best_isa([&](auto best) {
    if (best.kVectorBytes >= 32) all.push_back(&row_loops(chassis::isa::Avx2{}));
    if (best.kVectorBytes >= 64) all.push_back(&row_loops(chassis::isa::Avx512{}));
  });
#endif
  return all;
}

TEST(Bnb4Rows, SumsAreThoseOfFp64WithEveryInstructionSet) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  for (const RowLoops* loops : variants())
    for (const auto& [n, block, within] : {std::array<int64_t, 3>{32, 32, 0},
                                           {896, 64, 0},
                                           {224, 128, 96},
                                           {14336, 4096, 0},
                                           {64, 4096, 4000 / 32 * 32},
                                           {160, 64, 32}})
      for (int64_t num_rows = 1; num_rows <= kMaxRows; ++num_rows) {
        SCOPED_TRACE(testing::Message() << num_rows << " rows of " << n << " from " << within << " of " << block);
        const auto blocks = static_cast<size_t>((within + n + block - 1) / block);
        std::vector<float> x(static_cast<size_t>(num_rows * n)), split(x.size()), absmax(blocks);
        std::vector<uint8_t> codes(static_cast<size_t>(n / 2));
        for (float& v : x) v = normal(generator);
        for (float& v : absmax) v = 1.0f + std::abs(normal(generator));
        for (uint8_t& code : codes) code = static_cast<uint8_t>(generator());
        for (int64_t r = 0; r < num_rows; ++r) loops->split_f32(x.data() + r * n, n, split.data() + r * n);
        std::vector<float> sums(static_cast<size_t>(num_rows), 0.5f);
        loops->add_dots(num_rows, split.data(), n, kNf4.data(), codes.data(), absmax.data(), within, block, n,
                        sums.data());
        for (int64_t r = 0; r < num_rows; ++r) {
          double sum = 0.5, terms = 0.5;
          for (int64_t i = 0; i < n; ++i) {
            const uint8_t both = codes[static_cast<size_t>(i / 2)];
            const double value = static_cast<double>(kNf4[i % 2 == 0 ? both >> 4 : both & 15]) *
                                 static_cast<double>(absmax[static_cast<size_t>((within + i) / block)]);
            const double term = static_cast<double>(x[static_cast<size_t>(r * n + i)]) * value;
            sum += term, terms += std::abs(term);
          }
          ASSERT_NEAR(static_cast<double>(sums[static_cast<size_t>(r)]), sum, terms * 0x1p-20);
        }
      }
}

TEST(Bnb4Rows, SplitsEvenFromOddPlaces) {
  std::vector<float> x(64);
  std::vector<uint16_t> halves(64);
  for (size_t i = 0; i < 64; ++i) x[i] = static_cast<float>(i), halves[i] = std::bit_cast<uint32_t>(x[i]) >> 16;
  for (const RowLoops* loops : variants()) {
    std::vector<float> wide(64), from_halves(64);
    loops->split_f32(x.data(), 64, wide.data());
    loops->split_bf16(halves.data(), 64, from_halves.data());
    EXPECT_EQ(wide, from_halves);
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(wide[i / 32 * 32 + i % 2 * 16 + i % 32 / 2], x[i]) << i;
  }
}

}  // namespace
}  // namespace bnb4
