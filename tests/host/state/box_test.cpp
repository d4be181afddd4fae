// Shapes, boxes, and flat ranges as boxes.
#include "host/state/box.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "host/base/error.hpp"

namespace chassis {
namespace {

TEST(Shape, RefusesNineDimsNegativeSizesAndOverflow) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(numel(Shape{4, -1}), Error);
  EXPECT_THROW(numel(Shape{0, -1}), Error);
  const int64_t big = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(numel(Shape{big, 3}), Error);
  EXPECT_EQ(numel(Shape{big, 3, 0}), 0);
  EXPECT_EQ(numel(Shape{}), 1);
}

TEST(Shape, HasRowMajorStrides) { EXPECT_EQ(row_major_strides(Shape{2, 3, 4}), (Shape{12, 4, 1})); }

TEST(Box, OfAScalarHasOneElement) {
  EXPECT_FALSE(Box{}.empty());
  EXPECT_EQ(numel(Box{}), 1);
  EXPECT_TRUE(Box{}.contains(Shape{}));
}

TEST(Box, IntersectsToTheElementsInBoth) {
  const Box a{{0, 2}, {4, 6}}, b{{2, 0}, {8, 3}};
  EXPECT_EQ(intersection(a, b), (Box{{2, 2}, {4, 3}}));
  EXPECT_TRUE(intersection(a, Box{{4, 0}, {8, 8}}).empty());
  EXPECT_EQ(text(intersection(a, b)), "[2:4, 2:3]");
}

TEST(FlatRangeBoxes, AreHeadMiddleAndTail) {
  const auto boxes = flat_range_boxes(Shape{4, 5}, 3, 17);
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_EQ(boxes[0], (Box{{0, 3}, {1, 5}}));
  EXPECT_EQ(boxes[1], (Box{{1, 0}, {3, 5}}));
  EXPECT_EQ(boxes[2], (Box{{3, 0}, {4, 2}}));
}

TEST(FlatRangeBoxes, NeverExceedTwiceTheDimsMinusOne) {
  const Shape shape{3, 4, 2, 5};
  for (int64_t begin = 0; begin <= numel(shape); ++begin)
    for (int64_t end = begin; end <= numel(shape); ++end) {
      const auto boxes = flat_range_boxes(shape, begin, end);
      ASSERT_LE(boxes.size(), 7u);
      int64_t at = begin;  // boxes are contiguous, ascending and join up
      for (const Box& box : boxes) {
        int64_t first = 0;
        for (int k = 0; k < 4; ++k) first += box.begin[k] * row_major_strides(shape)[k];
        ASSERT_EQ(first, at);
        at += numel(box);
      }
      ASSERT_EQ(at, end);
    }
}

}  // namespace
}  // namespace chassis
