// The runs of a box in bytes.
#include "host/state/byte_range.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {
namespace {

std::vector<ByteRange> list(const ByteRanges& ranges) { return {ranges.begin(), ranges.end()}; }

TEST(ByteRanges, MergeWholeRowsIntoOneRun) {
  const ByteRanges ranges(Box{{2, 0}, {5, 8}}, Shape{6, 8}, 2, 100);
  EXPECT_TRUE(ranges.contiguous());
  EXPECT_EQ(list(ranges), (std::vector<ByteRange>{{100 + 32, 48}}));
}

TEST(ByteRanges, HaveOneRunPerRowOfAColumnBlock) {
  const ByteRanges ranges(Box{{1, 2}, {3, 5}}, Shape{4, 8}, 4);
  EXPECT_EQ(list(ranges), (std::vector<ByteRange>{{40, 12}, {72, 12}}));
  EXPECT_EQ(ranges.total_bytes(), 24);
  EXPECT_EQ(ranges.span(), (ByteRange{40, 44}));
}

TEST(ByteRanges, HaveOneRunForAScalarAndNoneForAnEmptyBox) {
  EXPECT_EQ(list(ByteRanges(Box{}, Shape{}, 8, 16)), (std::vector<ByteRange>{{16, 8}}));
  EXPECT_TRUE(list(ByteRanges(Box{{2}, {2}}, Shape{4}, 8)).empty());
}

TEST(ByteRanges, RefuseABoxOutsideTheTensor) { EXPECT_THROW(ByteRanges(Box{{0}, {5}}, Shape{4}, 1), Error); }

TEST(ByteRanges, AreCountedWithoutBeingComputed) {
  const int64_t rows = int64_t{1} << 40;
  const ByteRanges ranges(Box{{0, 1}, {rows, 2}}, Shape{rows, 4}, 2);
  EXPECT_EQ(ranges.size(), rows);
  EXPECT_EQ(*ranges.begin(), (ByteRange{2, 2}));
}

TEST(ByteRanges, EqualBruteForceAndAreMaximal) {
  std::mt19937_64 random(7);
  for (int test = 0; test < 2000; ++test) {
    Shape shape = Shape::filled(static_cast<int>(random() % 5), 0);
    Box box{shape, shape};
    for (int k = 0; k < shape.ndim(); ++k) {
      shape[k] = static_cast<int64_t>(1 + random() % 4);
      box.begin[k] = static_cast<int64_t>(random() % static_cast<uint64_t>(shape[k]));
      box.end[k] = box.begin[k] + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(shape[k] - box.begin[k]));
      if (random() % 2) box.begin[k] = 0, box.end[k] = shape[k];
    }
    std::vector<ByteRange> expected;
    for (int64_t flat = 0; flat < numel(shape); ++flat) {
      Shape at = shape;
      int64_t rest = flat;
      for (int k = shape.ndim() - 1; k >= 0; --k) at[k] = rest % shape[k], rest /= shape[k];
      if (!box.contains(at)) continue;
      if (!expected.empty() && expected.back().offset + expected.back().length == 3 * flat)
        expected.back().length += 3;
      else
        expected.push_back({3 * flat, 3});
    }
    ASSERT_EQ(list(ByteRanges(box, shape, 3)), expected) << text(box) << " of " << text(shape);
  }
}

}  // namespace
}  // namespace chassis
