#include "host/base/units.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

TEST(Units, BytesHaveThreeDigitsAndABinaryUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(bytes_text((uint64_t{1} << 20) - 1), "1 MiB");
}

TEST(Units, CountsHaveADecimalSuffix) {
  EXPECT_EQ(count_text(950), "950");
  EXPECT_EQ(count_text(12345), "12.3k");
  EXPECT_EQ(count_text(999999), "1M");
  EXPECT_EQ(count_text(-1500), "-1.5k");
  EXPECT_EQ(count_text(8.03e9), "8.03G");
}

TEST(Units, DurationsReadLikeAClock) {
  EXPECT_EQ(duration_text(42.4), "0:42");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600 + 4 * 60 + 5), "2d 3:04:05");
  EXPECT_EQ(duration_text(-1), "?");
}

}  // namespace
}  // namespace chassis
