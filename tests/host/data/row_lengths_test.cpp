#include "host/data/row_lengths.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace chassis {
namespace {

using Lengths = std::vector<int64_t>;

TEST(RowLengths, AreSeqLenUnlessTheyVary) {
  const RowLengths lengths(1000);
  EXPECT_FALSE(lengths.vary());
  EXPECT_EQ(lengths.holding(1), 1000);
  EXPECT_EQ(lengths.all(), Lengths{1000});
}

TEST(RowLengths, AreFewAndFourBetweenPowersOfTwo) {
  const RowLengths lengths(1000, 16);
  EXPECT_EQ(lengths.all(),
            (Lengths{16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1000}));
  EXPECT_LE(RowLengths(1 << 20, 16).all().size(), 60u);
}

TEST(RowLengths, HoldEveryRowAndAddAtMostAQuarterOrOneMultiple) {
  for (const int64_t multiple : {1, 16, 48, 96})
    for (const int64_t seq_len : {1, 17, 96, 1000}) {
      const RowLengths lengths(seq_len, multiple);
      const Lengths all = lengths.all();
      EXPECT_EQ(all.back(), seq_len);
      for (int64_t longest = 0; longest <= seq_len; ++longest) {
        const int64_t length = lengths.holding(longest);
        EXPECT_GE(length, longest);
        EXPECT_LE(length, std::max(longest + longest / 4 + multiple, multiple)) << longest << " " << multiple;
        EXPECT_TRUE(length == seq_len || length % multiple == 0) << longest << " " << multiple;
        EXPECT_EQ(length, *std::lower_bound(all.begin(), all.end(), longest)) << longest << " " << multiple;
      }
    }
}

}  // namespace
}  // namespace chassis
