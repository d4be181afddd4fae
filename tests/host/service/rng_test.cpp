// Philox and the random streams.
#include "host/service/rng.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "host/service/philox.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

// Known answers from Random123, the authors' own library.
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t all = 0xffffffff;
  EXPECT_EQ(philox4x32({all, all, all, all}, {all, all}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, MakesUniformNumbersOfTheTop24Bits) {
  float out[4];
  philox_uniform(0x299f31d0a4093822, 8, 4, out);
  const auto words = philox4x32({2, 0, 0, 0}, {0xa4093822, 0x299f31d0});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], static_cast<float>(words[i] >> 8) * 0x1p-24f);
}

// The bits must be the same on every machine and with every compiler, since initial weights are made of them.
TEST(Philox, HasTheSameBitsOnEveryMachine) {
  constexpr uint64_t key = 0x0123456789abcdef;
  constexpr float uniform[] = {0x1.48f834p-2f, 0x1.95005p-2f,  0x1.6533b4p-1f, 0x1.ef9c52p-1f,
                               0x1.047996p-1f, 0x1.3fbf8cp-2f, 0x1.a8fe6p-4f,  0x1.5860fp-1f,
                               0x1.fefa2p-2f,  0x1.091d2p-5f,  0x1.fc270cp-1f, 0x1.40546p-1f,
                               0x1.a43376p-1f, 0x1.639886p-1f, 0x1.5a196ap-1f, 0x1.5d976cp-2f};
  constexpr float normal[] = {-0x1.f1b5fap-4f, 0x1.63bcdap-2f,  0x1.d6b6f2p-1f,  -0x1.2d0544p-1f,
                              0x1.024996p+0f,  0x1.2cdbcp-1f,   -0x1.1bd5b8p-5f, -0x1.3a76d4p-1f,
                              -0x1.156256p-3f, -0x1.80a086p+0f, -0x1.c91c3ap-1f, 0x1.9df966p-2f,
                              -0x1.2d281cp-3f, 0x1.3b245p+0f,   -0x1.50c5e8p+0f, 0x1.4ed326p+0f};
  float out[16];
  philox_uniform(key, 5, 16, out);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i], uniform[i]) << i;
  philox_normal(key, 5, 16, out);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(out[i], normal[i]) << i;
}

TEST(Rng, MakesAnyPartOfAStreamAsInTheWhole) {
  std::vector<float> whole(100'003);
  random_normal(1, "lm_head.weight", 0, whole);
  for (auto [begin, count] : {std::pair<uint64_t, uint64_t>{0, 1}, {1, 2}, {3, 300}, {255, 257}, {777, 99'000}}) {
    std::vector<float> part(count);
    random_normal(1, "lm_head.weight", begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin))) << begin;
  }
}

TEST(Rng, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> many(500'000), one(500'000);
  const int before = num_threads();
  random_uniform(3, "x", 0, many);
  set_threads(1);
  random_uniform(3, "x", 0, one);
  set_threads(before);
  EXPECT_EQ(many, one);
}

TEST(Rng, HasOtherStreamsForOtherNamesAndSeeds) {
  std::vector<float> a(64), b(64), c(64);
  random_uniform(1, "a", 0, a);
  random_uniform(1, "b", 0, b);
  random_uniform(2, "a", 0, c);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
}

TEST(Rng, HasTheMomentsOfANormal) {
  std::vector<float> x(1 << 20);
  random_normal(9, "moments", 0, x);
  double mean = 0, square = 0, fourth = 0;
  for (float v : x) {
    mean += v;
    square += static_cast<double>(v) * v;
    fourth += std::pow(static_cast<double>(v), 4);
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(mean / n, 0.0, 4e-3);
  EXPECT_NEAR(square / n, 1.0, 6e-3);
  EXPECT_NEAR(fourth / n / (square / n) / (square / n), 3.0, 3e-2);
}

}  // namespace
}  // namespace chassis
