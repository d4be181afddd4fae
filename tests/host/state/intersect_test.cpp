// Copies between layouts and their runs.
#include "host/state/intersect.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

Layout layout(Shape shape, int ranks, Placement placement) {
  Descriptor d = Descriptor::plain("w", Dtype::f32, shape);
  d.placements = {std::move(placement)};
  return Layout(d, MeshShape({{"dp_shard", ranks}}));
}

struct Stretch {
  int64_t from, to, length;
  bool operator==(const Stretch&) const = default;
};

std::vector<Stretch> runs(const Copy& copy) {
  std::vector<Stretch> out;
  for_each_run(copy, [&](int64_t from, int64_t to, int64_t length) { out.push_back({from, to, length}); });
  return out;
}

TEST(Copies, FromRowsToColumnsAreStrided) {
  const Layout rows = layout({4, 6}, 2, Placement::dim_chunk({"dp_shard"}, 0));
  const Layout columns = layout({4, 6}, 3, Placement::dim_chunk({"dp_shard"}, 1));
  const auto found = copies(rows, 1, columns, 2);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].box, (Box{{2, 4}, {4, 6}}));
  EXPECT_EQ(found[0].from, (StridedView{4, {6, 1}}));
  EXPECT_EQ(found[0].to, (StridedView{4, {2, 1}}));
  EXPECT_EQ(runs(found[0]), (std::vector<Stretch>{{4, 4, 2}, {10, 6, 2}}));
}

TEST(Copies, BetweenFlatRangesAndRowsMergeIntoLongRuns) {
  const Layout rows = layout({4, 6}, 2, Placement::dim_chunk({"dp_shard"}, 0));
  const Layout flat = layout({4, 6}, 3, Placement::flat_range({"dp_shard"}));
  const auto found = copies(flat, 1, rows, 0);  // elements 8-15; rows 0 and 1 end at 12
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(runs(found[0]), (std::vector<Stretch>{{0, 8, 4}}));
  EXPECT_EQ(runs(copies(flat, 1, rows, 1)[0]), (std::vector<Stretch>{{4, 0, 4}}));
}

TEST(Copies, CanHaveAFileAsOneSide) {
  const Layout columns = layout({4, 6}, 3, Placement::dim_chunk({"dp_shard"}, 1));
  const Piece piece = columns.pieces(1).at(0);
  const Copy copy{piece.box, piece.local, row_major_view({4, 6}, piece.box)};
  EXPECT_EQ(runs(copy), (std::vector<Stretch>{{0, 2, 2}, {2, 8, 2}, {4, 14, 2}, {6, 20, 2}}));
}

TEST(Copies, ComeFromOwnersOnly) {
  const Layout replicated(Descriptor::plain("w", Dtype::f32, {4}), MeshShape({{"dp_shard", 2}}));
  EXPECT_EQ(copies(replicated, 0, replicated, 1).size(), 1u);
  EXPECT_TRUE(copies(replicated, 1, replicated, 0).empty());
}

TEST(Copies, RefuseTensorsOfOtherShapes) {
  const Layout a = layout({4}, 1, Placement::dim_chunk({"dp_shard"}, 0));
  const Layout b = layout({5}, 1, Placement::dim_chunk({"dp_shard"}, 0));
  EXPECT_THROW(copies(a, 0, b, 0), Error);
}

}  // namespace
}  // namespace chassis
