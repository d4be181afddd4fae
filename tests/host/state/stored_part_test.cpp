#include "host/state/stored_part.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

// Tensor [3, 2, 4]; its second matrix is a column of 8 values on disk.
const StoredPart kMatrix = StoredPart::reshaped("x", Shape{8, 1}, Box{{1, 0, 0}, {2, 2, 4}});

TEST(StoredPart, HasTheElementsOfABoxInAnotherShape) {
  const std::vector<Piece> whole = kMatrix.pieces(Box::whole({8, 1}));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].box, kMatrix.box);
  EXPECT_EQ(whole[0].local, (StridedView{0, {8, 4, 1}}));
}

TEST(StoredPart, CutsAPartOfABoxInAnotherShapeIntoBoxes) {
  const std::vector<Piece> pieces = kMatrix.pieces(Box{{2, 0}, {7, 1}});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].box, (Box{{1, 0, 2}, {2, 1, 4}}));
  EXPECT_EQ(pieces[0].local.offset, 0);
  EXPECT_EQ(pieces[1].box, (Box{{1, 1, 0}, {2, 2, 3}}));
  EXPECT_EQ(pieces[1].local.offset, 2);
}

TEST(StoredPart, IsNotReshapedIfTheBoxHasItsShapeOnDisk) {
  const StoredPart part = StoredPart::reshaped("x", Shape{4}, Box{{4}, {8}});
  EXPECT_FALSE(part.is_reshaped);
  const std::vector<Piece> pieces = part.pieces(Box{{1}, {3}});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].box, (Box{{5}, {7}}));
}

}  // namespace
}  // namespace chassis
