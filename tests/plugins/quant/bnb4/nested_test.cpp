// Double quantization of absmax.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "plugins/quant/bnb4/nested.hpp"

namespace bnb4 {
namespace {

TEST(Bnb4DynamicMap, IsAscendingFromMinus0_99ToOne) {
  EXPECT_TRUE(std::is_sorted(kDynamicMap.begin(), kDynamicMap.end()));
  EXPECT_EQ(kDynamicMap[127], 0.0f);
  EXPECT_EQ(kDynamicMap[255], 1.0f);
  EXPECT_EQ(kDynamicMap[0], -0.99296874f);
  uint32_t sum = 0;
  for (const float value : kDynamicMap) sum = sum * 31 + std::bit_cast<uint32_t>(value);
  EXPECT_EQ(sum, 0xa4416a6cu) << "the table is a constant; files of other programs have it too";
}

TEST(Bnb4DynamicCode, IsNearestAndTiesGoToTheLastOneProbed) {
  const float* const map = kDynamicMap.data();
  for (int step = -(1 << 16); step <= 1 << 16; ++step) {
    const float x = static_cast<float>(step) / 65536.0f;
    const float found = std::abs(map[nearest_code(map, x)] - x);
    float least = 3.0f;
    for (const float value : kDynamicMap) least = std::min(least, std::abs(value - x));
    ASSERT_LE(found, least + 1e-7f) << x;  // the middle of two values is rounded
  }
  const float middle = (map[200] + map[201]) * 0.5f;
  EXPECT_EQ(nearest_code(map, std::nextafter(middle, -2.0f)), 200);
  EXPECT_EQ(nearest_code(map, std::nextafter(middle, 2.0f)), 201);
  EXPECT_EQ(nearest_code(map, 0.0f), 127);
  EXPECT_EQ(nearest_code(map, 5.0f), 255);
  EXPECT_EQ(nearest_code(map, -5.0f), 0);
}

TEST(Bnb4Absmax, IsRestoredWithinHalfAStepOfTheCode) {
  std::mt19937 generator(2);
  for (const int64_t count : {1, 255, 256, 257, 1000}) {
    std::vector<float> absmax(static_cast<size_t>(count)), back(absmax.size());
    for (float& value : absmax) value = std::uniform_real_distribution<float>(0.5f, 3.0f)(generator);
    const float offset = mean(absmax.data(), count);
    std::vector<uint8_t> codes(absmax.size());
    std::vector<float> nested((absmax.size() + 255) / 256);
    quantize_absmax(absmax.data(), count, kDynamicMap.data(), offset, codes.data(), nested.data());
    restore_absmax(codes.data(), nested.data(), kDynamicMap.data(), offset, 0, count, back.data());
    for (size_t i = 0; i < absmax.size(); ++i) ASSERT_NEAR(back[i], absmax[i], 0.02f) << i;
    // Any part of it gives the same bits.
    std::vector<float> part(absmax.size());
    for (size_t first = 0; first < absmax.size(); first += 100) {
      const auto length = static_cast<int64_t>(std::min<size_t>(100, absmax.size() - first));
      restore_absmax(codes.data() + first, nested.data(), kDynamicMap.data(), offset, static_cast<int64_t>(first),
                     length, part.data() + first);
    }
    EXPECT_EQ(part, back);
  }
}

TEST(Bnb4Absmax, ThatAreAllEqualAreRestoredExactly) {
  const std::vector<float> absmax(300, 0.7f);
  std::vector<uint8_t> codes(300);
  std::vector<float> nested(2), back(300);
  const float offset = mean(absmax.data(), 300);
  quantize_absmax(absmax.data(), 300, kDynamicMap.data(), offset, codes.data(), nested.data());
  restore_absmax(codes.data(), nested.data(), kDynamicMap.data(), offset, 0, 300, back.data());
  EXPECT_EQ(back, absmax);
}

}  // namespace
}  // namespace bnb4
