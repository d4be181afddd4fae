// The copies that are cut into tiles, and the elements of each tile.
#include "host/state/tile.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "host/state/stored_part.hpp"
#include "random_layout.hpp"

namespace chassis::testing {
namespace {

using Places = std::map<int64_t, int64_t>;  // places of elements: in the destination, in the source

void add_places(const Copy& copy, Places& out) {
  for_each_run(copy, [&](int64_t from, int64_t to, int64_t length) {
    for (int64_t k = 0; k < length; ++k) ASSERT_TRUE(out.emplace(to + k, from + k).second) << "written twice";
  });
}

std::vector<int64_t> tile_sizes(const Copy& copy, int64_t from_run, int64_t to_run) {
  std::vector<int64_t> out;
  for_each_tile(copy, &Copy::from, from_run, to_run, [&](const Copy& tile) { out.push_back(numel(tile.box)); });
  return out;
}

TEST(RunsAgree, IfTheLastDimIsContiguousOnBothSides) {
  const Box rows{{0, 0}, {4, 6}}, column{{0, 2}, {4, 3}};
  EXPECT_TRUE(runs_agree({rows, {0, {6, 1}}, {24, {12, 1}}}));
  EXPECT_TRUE(runs_agree({column, {0, {1, 1}}, {0, {1, 4}}}));  // dims of one index do not count
  EXPECT_FALSE(runs_agree({rows, {0, {6, 1}}, {0, {1, 4}}}));
  EXPECT_FALSE(runs_agree({column, {2, {6, 1}}, {0, {1, 1}}}));
}

TEST(RunsAgree, NotIfOneRowIsAColumnOnTheOtherSide) {
  const Box row{{2, 0}, {3, 6}};
  EXPECT_FALSE(runs_agree({row, {0, {6, 1}}, {2, {1, 4}}}));
  EXPECT_FALSE(runs_agree({row, {2, {1, 4}}, {0, {6, 1}}}));
}

TEST(RunsAgree, NotIfBothSidesAreTransposed) {
  const Box rows{{0, 0}, {4, 6}};
  EXPECT_FALSE(runs_agree({rows, {0, {1, 4}}, {0, {1, 4}}}));
}

TEST(RunsAgree, ForASingleElement) {
  EXPECT_TRUE(runs_agree({Box{{2, 3}, {3, 4}}, {0, {6, 5}}, {0, {7, 8}}}));
  EXPECT_TRUE(runs_agree({}));
}

TEST(Tiles, HaveBothLimitsInATransposition) {
  EXPECT_EQ(tile_sizes({Box{{0, 0}, {10, 5}}, {0, {1, 10}}, {0, {5, 1}}}, 8, 4),
            (std::vector<int64_t>{8 * 4, 2 * 4, 8, 2}));
}

TEST(Tiles, TakeTheProductOfBothLimitsAlongACommonDim) {
  EXPECT_EQ(tile_sizes({Box{{2, 0}, {3, 40}}, {2, {1, 50}}, {0, {40, 1}}}, 8, 4), (std::vector<int64_t>{32, 8}));
}

TEST(Tiles, CoverATensorThatIsPermutedOnDiskUnderZero) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(seed);
    Shape shape = Shape::filled(static_cast<int>(dice.roll(1, 3)), 1), disk_shape = shape;
    std::vector<int> dims;
    for (int k = 0; k < shape.ndim(); ++k) {
      shape[k] = dice.roll(1, 12);
      dims.insert(dims.begin() + dice.roll(0, k), k);
    }
    for (int k = 0; k < shape.ndim(); ++k) disk_shape[k] = shape[dims[static_cast<size_t>(k)]];
    const StoredPart part{"w", disk_shape, Box::whole(shape), Shape::filled(shape.ndim(), 0), dims};
    const std::vector<Piece> on_disk = {part.piece(Box::whole(disk_shape))};

    Descriptor d = Descriptor::plain("w", Dtype::f32, shape);
    d.placements = {Placement::flat_range({"dp_shard"})};
    const Layout layout(d, MeshShape({{"dp_shard", static_cast<int>(dice.roll(1, 8))}}));
    for (int rank = 0; rank < layout.world_size(); ++rank)
      for (const Copy& copy : copies(on_disk, layout.pieces(rank))) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", rank " + std::to_string(rank) + ", box " + text(copy.box));
        if (runs_agree(copy)) {
          for_each_run(copy, [&](int64_t, int64_t, int64_t length) {
            EXPECT_TRUE(length > 1 || numel(copy.box) == 1) << length;
          });
          continue;
        }
        Places expected, tiled;
        add_places(copy, expected);
        for_each_tile(copy, &Copy::from, 8, 4, [&](const Copy& tile) {
          ASSERT_LE(numel(tile.box), 8 * 4);
          add_places(tile, tiled);
        });
        ASSERT_EQ(tiled, expected);
      }
  }
}

}  // namespace
}  // namespace chassis::testing
