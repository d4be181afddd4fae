// The codes of nf4 and fp4: the same bits on every instruction set, nearest values, thresholds and partial blocks.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "plugins/quant/bnb4/loops.hpp"

namespace bnb4 {
namespace {

constexpr int64_t kSizes[] = {1, 2, 31, 32, 63, 64, 65, 127, 4096, 20001};
constexpr int64_t kBlocks[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};

std::vector<const Loops*> all_loops() {
  std::vector<const Loops*> all = {&loops(chassis::isa::Baseline{})};
#if defined(__x86_64__)
  chassis::for_best_isa([&](auto best) {
    if (best.kVectorBytes >= 32) all.push_back(&loops(chassis::isa::Avx2{}));
    if (best.kVectorBytes >= 64) all.push_back(&loops(chassis::isa::Avx512{}));
  });
#endif
  return all;
}

std::vector<float> normal(int64_t n, uint32_t seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = distribution(generator);
  return values;
}

struct Stored {
  std::vector<uint8_t> codes;
  std::vector<float> absmax;
  bool operator==(const Stored&) const = default;
};

Stored quantized(const Loops& loops, Code code, const std::vector<float>& values, int64_t block) {
  const auto n = static_cast<int64_t>(values.size());
  Stored out{std::vector<uint8_t>(static_cast<size_t>((n + 1) / 2)),
             std::vector<float>(static_cast<size_t>((n + block - 1) / block))};
  EXPECT_EQ(loops.quantize_f32(code, values.data(), n, block, out.codes.data(), out.absmax.data()), -1);
  return out;
}

uint32_t code_at(const Stored& stored, size_t i) {
  return i % 2 == 0 ? stored.codes[i / 2] >> 4 : stored.codes[i / 2] & 15u;
}

uint16_t bf16_bits(float value) {
  const auto word = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

TEST(Bnb4Codes, AreTheSameOnEveryInstructionSet) {
  for (const Code code : {Code::kNf4, Code::kFp4})
    for (const int64_t block : kBlocks)
      for (const int64_t n : kSizes) {
        const std::vector<float> values = normal(n, static_cast<uint32_t>(n + block));
        const Stored expected = quantized(loops(chassis::isa::Baseline{}), code, values, block);
        for (const Loops* other : all_loops())
          ASSERT_EQ(quantized(*other, code, values, block), expected) << n << " values in blocks of " << block;
      }
}

TEST(Bnb4Codes, AreTheSameFromBf16AndF16AsFromTheirValuesInF32) {
  const int64_t n = 1001, block = 64;
  std::vector<uint16_t> bf16(n), f16(n);
  std::vector<float> from_bf16(n), from_f16(n);
  std::mt19937 generator(3);
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    bf16[i] = bf16_bits(std::normal_distribution<float>()(generator));
    from_bf16[i] = std::bit_cast<float>(static_cast<uint32_t>(bf16[i]) << 16);
    // Signed, of every exponent, subnormals too.
    const auto exponent = static_cast<uint32_t>(generator() % 31), fraction = static_cast<uint32_t>(generator() % 1024);
    f16[i] = static_cast<uint16_t>((generator() % 2) << 15 | exponent << 10 | fraction);
    const double scale = exponent == 0 ? std::ldexp(1.0, -24) : std::ldexp(1.0, static_cast<int>(exponent) - 25);
    from_f16[i] = static_cast<float>((exponent == 0 ? fraction : fraction + 1024) * scale * (f16[i] >> 15 ? -1 : 1));
  }
  for (const Loops* loops : all_loops()) {
    Stored a = quantized(*loops, Code::kNf4, from_bf16, block), b = quantized(*loops, Code::kNf4, from_f16, block);
    Stored other = a;
    EXPECT_EQ(loops->quantize_bf16(Code::kNf4, bf16.data(), n, block, other.codes.data(), other.absmax.data()), -1);
    EXPECT_EQ(other, a);
    EXPECT_EQ(loops->quantize_f16(Code::kNf4, f16.data(), n, block, other.codes.data(), other.absmax.data()), -1);
    EXPECT_EQ(other, b);
  }
}

TEST(Bnb4Codes, OfAThresholdAreThoseOfTheValueBelow) {
  for (const Loops* loops : all_loops()) {
    std::vector<float> values(64, 0.0f);
    values[0] = 1.0f;  // absmax
    for (size_t i = 0; i < 15; ++i) {
      values[3 * i + 1] = std::nextafter(kNf4Thresholds[i], -2.0f);
      values[3 * i + 2] = kNf4Thresholds[i];
      values[3 * i + 3] = std::nextafter(kNf4Thresholds[i], 2.0f);
    }
    const Stored stored = quantized(*loops, Code::kNf4, values, 64);
    for (size_t i = 0; i < 15; ++i) {
      EXPECT_EQ(code_at(stored, 3 * i + 1), i);
      EXPECT_EQ(code_at(stored, 3 * i + 2), i);
      EXPECT_EQ(code_at(stored, 3 * i + 3), i + 1);
    }
  }
}

TEST(Bnb4Codes, OfFp4HaveASignAndTheCudaKernelsThresholds) {
  for (const Loops* loops : all_loops()) {
    std::vector<float> values(64, 0.0f);
    values[0] = 1.0f;
    for (size_t i = 0; i < 7; ++i) {
      values[4 * i + 1] = kFp4Thresholds[i];
      values[4 * i + 2] = std::nextafter(kFp4Thresholds[i], 2.0f);
      values[4 * i + 3] = -kFp4Thresholds[i];
      values[4 * i + 4] = std::nextafter(-kFp4Thresholds[i], -2.0f);
    }
    const Stored stored = quantized(*loops, Code::kFp4, values, 64);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(code_at(stored, 4 * i + 1), kFp4Order[i]);
      EXPECT_EQ(code_at(stored, 4 * i + 2), kFp4Order[i + 1]);
      EXPECT_EQ(code_at(stored, 4 * i + 3), kFp4Order[i] | 8) << "a negative value that rounds to zero keeps its sign";
      EXPECT_EQ(code_at(stored, 4 * i + 4), kFp4Order[i + 1] | 8);
    }
    EXPECT_EQ(code_at(stored, 63), 0u);
  }
}

TEST(Bnb4Codes, OfABlockOfZerosAreZero) {
  for (const Loops* loops : all_loops()) {
    const Stored nf4 = quantized(*loops, Code::kNf4, std::vector<float>(65, 0.0f), 64);
    EXPECT_EQ(nf4.codes, std::vector<uint8_t>(33, 0x77));
    EXPECT_EQ(nf4.absmax, std::vector<float>(2, 0.0f));
    EXPECT_EQ(quantized(*loops, Code::kFp4, std::vector<float>(65, 0.0f), 64).codes, std::vector<uint8_t>(33, 0));
  }
}

TEST(Bnb4Codes, OfASubnormalAbsmaxAreFinite) {
  for (const Loops* loops : all_loops()) {
    std::vector<float> values(64, 1e-40f);
    values[1] = -1e-39f;
    const Stored stored = quantized(*loops, Code::kNf4, values, 64);
    EXPECT_EQ(stored.absmax[0], 1e-39f);
    EXPECT_EQ(code_at(stored, 1), 6u);  // −1e-39 scaled by 1e38
    EXPECT_EQ(code_at(stored, 0), 7u);
  }
}

TEST(Bnb4Codes, AreRefusedForValuesThatAreNotFinite) {
  for (const Loops* loops : all_loops())
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()})
      for (const size_t at : {size_t{0}, size_t{64}, size_t{150}, size_t{199}}) {
        std::vector<float> values = normal(200);
        values[at] = bad;
        Stored out{std::vector<uint8_t>(100), std::vector<float>(4)};
        EXPECT_EQ(loops->quantize_f32(Code::kNf4, values.data(), 200, 64, out.codes.data(), out.absmax.data()),
                  static_cast<int64_t>(at / 64));
      }
}

TEST(Bnb4Values, AreTableTimesAbsmaxRoundedOnce) {
  const int64_t n = 1001;
  for (const Code code : {Code::kNf4, Code::kFp4})
    for (const int64_t block : kBlocks) {
      const Stored stored = quantized(loops(chassis::isa::Baseline{}), code, normal(n), block);
      for (const Loops* loops : all_loops()) {
        std::vector<float> f32(n);
        std::vector<uint16_t> bf16(n), f16(n);
        const float* const table = values_of(code).data();
        loops->dequantize_f32(table, stored.codes.data(), stored.absmax.data(), n, block, f32.data());
        loops->dequantize_bf16(table, stored.codes.data(), stored.absmax.data(), n, block, bf16.data());
        loops->dequantize_f16(table, stored.codes.data(), stored.absmax.data(), n, block, f16.data());
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
          const float expected = table[code_at(stored, i)] * stored.absmax[i / static_cast<size_t>(block)];
          ASSERT_EQ(f32[i], expected) << i;
          ASSERT_EQ(bf16[i], bf16_bits(expected)) << i;
          ASSERT_EQ(f16[i], std::bit_cast<uint16_t>(static_cast<_Float16>(expected))) << i;
        }
      }
    }
}

TEST(Bnb4Values, HaveThePublishedErrorOnNormalValues) {
  const int64_t n = 1 << 20;
  const std::vector<float> values = normal(n, 5);
  const auto mean_error = [&](Code code, int64_t block) {
    const Stored stored = quantized(loops(), code, values, block);
    std::vector<float> back(values.size());
    loops().dequantize_f32(values_of(code).data(), stored.codes.data(), stored.absmax.data(), n, block, back.data());
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) sum += static_cast<double>(std::abs(back[i] - values[i]));
    return sum / static_cast<double>(n);
  };
  EXPECT_NEAR(mean_error(Code::kNf4, 64), 0.072798, 7 * 0.000074);
  EXPECT_NEAR(mean_error(Code::kNf4, 32), 0.067746, 7 * 0.000074);
  EXPECT_NEAR(mean_error(Code::kNf4, 4096), 0.092547, 7 * 0.00015);
  EXPECT_NEAR(mean_error(Code::kFp4, 64), 0.096543, 7 * 0.000111);
}

}  // namespace
}  // namespace bnb4
