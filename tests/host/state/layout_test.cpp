// Local shapes, boxes and owners of descriptors on a mesh.
#include "host/state/layout.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "host/base/error.hpp"
#include "host/state/cover.hpp"

namespace chassis {
namespace {

MeshShape mesh_of(int dp_shard, int tp) { return MeshShape({{"dp_shard", dp_shard}, {"tp", tp}}); }

Descriptor weight(Shape shape, std::vector<Placement> placements) {
  Descriptor d = Descriptor::plain("w", Dtype::bf16, shape);
  d.placements = std::move(placements);
  return d;
}

std::string refusal(const Descriptor& d, const MeshShape& mesh) {
  try {
    const Layout layout(d, mesh);
    for (int rank = 0; rank < mesh.world_size(); ++rank) layout.pieces(rank);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Layout, CutsDim0AsTorchChunkDoesAndLeavesLastRanksEmpty) {
  const Layout layout(weight({10, 3}, {Placement::dim_chunk({"dp_shard"}, 0)}), mesh_of(7, 1));
  const int64_t rows[] = {2, 2, 2, 2, 2, 0, 0};
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(layout.local_shape(rank), (Shape{rows[rank], 3}));
  EXPECT_TRUE(layout.boxes(6).empty());
  EXPECT_TRUE(layout.holds(6));
}

TEST(Layout, DividesWhatTensorParallelismLeft) {
  // TP cuts first, although dp_shard comes first in the mesh: rank (dp 1, tp 0) holds the second half of TP's first
  // half.
  const Layout layout(weight({8, 4}, {Placement::dim_chunk({"tp"}, 0), Placement::dim_chunk({"dp_shard"}, 0)}),
                      mesh_of(2, 2));
  EXPECT_EQ(layout.boxes(0)[0], (Box{{0, 0}, {2, 4}}));
  EXPECT_EQ(layout.boxes(1)[0], (Box{{4, 0}, {6, 4}}));
  EXPECT_EQ(layout.boxes(2)[0], (Box{{2, 0}, {4, 4}}));
  EXPECT_EQ(layout.boxes(3)[0], (Box{{6, 0}, {8, 4}}));
}

TEST(Layout, JoinsSeveralAxesIntoOne) {
  const MeshShape mesh({{"dp_shard", 2}, {"cp", 2}});
  const Layout joined(weight({10}, {Placement::dim_chunk({"dp_shard", "cp"}, 0)}), mesh);
  const Layout nested(weight({10}, {Placement::dim_chunk({"dp_shard"}, 0), Placement::dim_chunk({"cp"}, 0)}), mesh);
  EXPECT_EQ(joined.boxes(1)[0], (Box{{3}, {6}}));
  EXPECT_EQ(nested.boxes(1)[0], (Box{{3}, {5}}));
}

TEST(Layout, PadsAFlatPartitionToEqualParts) {
  const Layout layout(weight({3, 5}, {Placement::flat_range({"dp_shard"})}), mesh_of(4, 1));
  EXPECT_TRUE(layout.is_flat());
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(layout.local_shape(rank), Shape{4});
  EXPECT_EQ(layout.boxes(1), (std::vector<Box>{{{0, 4}, {1, 5}}, {{1, 0}, {2, 3}}}));
  EXPECT_EQ(layout.boxes(3), (std::vector<Box>{{{2, 2}, {3, 5}}}));
}

TEST(Layout, TakesGivenFlatRanges) {
  const Layout layout(weight({2, 4}, {Placement::flat_ranges({"dp_shard"}, {{0, 1}, {1, 0}, {1, 7}})}), mesh_of(3, 1));
  EXPECT_EQ(layout.boxes(0), (std::vector<Box>{{{0, 0}, {1, 1}}}));
  EXPECT_TRUE(layout.boxes(1).empty());
  EXPECT_EQ(layout.boxes(2), (std::vector<Box>{{{0, 1}, {1, 4}}, {{1, 0}, {2, 4}}}));
  EXPECT_NE(refusal(weight({2, 4}, {Placement::flat_ranges({"dp_shard"}, {{0, 1}, {1, 8}})}), mesh_of(2, 1))
                .find("is given 8 elements at 1, its local tensor has 8"),
            std::string::npos);
}

TEST(Layout, KeepsHeadsWhole) {
  Placement p = Placement::dim_chunk({"tp"}, 0);
  p.unit = 64;
  const Layout layout(weight({5 * 64, 8}, {p}), mesh_of(1, 2));
  EXPECT_EQ(layout.local_shape(0), (Shape{3 * 64, 8}));
  EXPECT_EQ(layout.local_shape(1), (Shape{2 * 64, 8}));
}

TEST(Layout, GivesATensorOfOnePipelineStageOnlyToItsRanks) {
  const MeshShape mesh({{"pp", 2}, {"tp", 2}});
  const Layout layout(weight({4, 2}, {Placement::only_on({"pp"}, 1), Placement::dim_chunk({"tp"}, 0)}), mesh);
  EXPECT_FALSE(layout.holds(0));
  EXPECT_EQ(layout.local_shape(0), (Shape{0, 0}));
  EXPECT_TRUE(layout.pieces(0).empty());
  EXPECT_EQ(layout.owned_boxes(3), (std::vector<Box>{{{2, 0}, {4, 2}}}));
}

TEST(Layout, HasOneOwnerAmongReplicasAndSpreadsThem) {
  const MeshShape mesh({{"dp_replicate", 8}, {"dp_shard", 2}});
  int owned_tensors[16] = {};
  for (int tensor = 0; tensor < 800; ++tensor) {
    Descriptor d = weight({8}, {Placement::dim_chunk({"dp_shard"}, 0)});
    d.fqn = "model.layers." + std::to_string(tensor) + ".weight";
    d.owner = OwnerRule::kSpread;
    const Layout layout(d, mesh);
    for (int rank = 0; rank < 16; ++rank) owned_tensors[rank] += layout.owned_boxes(rank).empty() ? 0 : 1;
  }
  EXPECT_EQ(std::accumulate(owned_tensors, owned_tensors + 16, 0), 1600);
  for (int count : owned_tensors) EXPECT_NEAR(count, 100, 40);
}

TEST(Layout, CanBeCopied) {
  std::vector<Layout> copies;
  {
    const Layout layout(weight({8, 4}, {Placement::dim_chunk({"tp"}, 0)}), mesh_of(2, 2));
    for (int k = 0; k < 5; ++k) copies.push_back(layout);
  }
  EXPECT_EQ(copies[3].boxes(1)[0], (Box{{4, 0}, {8, 4}}));
}

TEST(Layout, RefusesInvalidDescriptorsWithAReason) {
  const MeshShape mesh = mesh_of(4, 2);
  EXPECT_NE(
      refusal(weight({8}, {Placement::dim_chunk({"ep"}, 0)}), mesh).find("no axis 'ep' (it has dp_shard=4, tp=2)"),
      std::string::npos);
  EXPECT_NE(refusal(weight({8}, {Placement::dim_chunk({"tp"}, 1)}), mesh).find("no such dim"), std::string::npos);
  EXPECT_NE(refusal(weight({8}, {Placement::dim_chunk({"tp"}, 0), Placement::flat_range({"tp"})}), mesh)
                .find("already placed"),
            std::string::npos);
  EXPECT_NE(refusal(weight({8}, {Placement::flat_range({"tp"}), Placement::dim_chunk({"dp_shard"}, 0)}), mesh)
                .find("flat ranges come last"),
            std::string::npos);
  EXPECT_NE(refusal(weight({8}, {Placement::only_on({"tp"}, 2)}), mesh).find("there are 2 coordinates"),
            std::string::npos);
  EXPECT_NE(refusal(weight({8}, {Placement::flat_ranges({"tp"}, {{0, 8}})}), mesh).find("1 ranges for 2"),
            std::string::npos);
  Descriptor shrunk = weight({8}, {});
  shrunk.padded_shape = Shape{7};
  EXPECT_NE(refusal(shrunk, mesh).find("smaller"), std::string::npos);
}

// ColossalAI pads the vocabulary to a multiple of 64·tp; FSDP2 and torchtitan cut it unevenly. In both cases files have
// the true size.
class Vocab : public ::testing::TestWithParam<int64_t> {};

TEST_P(Vocab, IsCoveredForEveryTpPaddedOrNot) {
  const int64_t vocab = GetParam();
  for (int tp = 1; tp <= 8; ++tp)
    for (int dp = 1; dp <= 3; ++dp)
      for (bool padded : {false, true})
        for (bool flat : {false, true}) {
          Descriptor d = weight({vocab, 4}, {Placement::dim_chunk({"tp"}, 0)});
          d.placements.push_back(flat ? Placement::flat_range({"dp_shard"}) : Placement::dim_chunk({"dp_shard"}, 0));
          const int64_t multiple = int64_t{64} * tp;
          if (padded) d.padded_shape[0] = (vocab + multiple - 1) / multiple * multiple;
          const Layout layout(d, mesh_of(dp, tp));
          prove_cover({&layout, 1});
          int64_t held = 0;
          for (int rank = 0; rank < layout.world_size(); ++rank)
            for (const Box& box : layout.owned_boxes(rank)) {
              ASSERT_LE(box.end[0], vocab);
              held += numel(box);
            }
          ASSERT_EQ(held, vocab * 4);
          if (!padded || dp > 1 || flat) continue;
          for (int rank = 0; rank < tp; ++rank) ASSERT_EQ(layout.local_shape(rank)[0], d.padded_shape[0] / tp);
        }
}
INSTANTIATE_TEST_SUITE_P(LlamaAndQwen, Vocab, ::testing::Values(128256, 151936, 65535));

TEST(PaddedVocab, Has16064RowsOnEachOf8RanksAndNoPaddingInBoxes) {
  Descriptor d = weight({128256, 8192}, {Placement::dim_chunk({"tp"}, 0)});
  d.padded_shape = Shape{128512, 8192};
  const Layout layout(d, mesh_of(1, 8));
  EXPECT_EQ(layout.local_shape(7), (Shape{16064, 8192}));
  EXPECT_EQ(layout.boxes(7)[0], (Box{{112448, 0}, {128256, 8192}}));
}

TEST(Granularity, RoundsFlatPartitionsToBlocks) {
  Descriptor d = weight({10, 10}, {Placement::flat_range({"dp_shard"})});
  d.granularity = Granularity::block_of(32);
  const Layout layout(d, mesh_of(3, 1));
  EXPECT_EQ(layout.local_shape(0), Shape{64});
  EXPECT_EQ(layout.local_shape(2), Shape{64});
  EXPECT_TRUE(layout.boxes(2).empty());
  prove_cover({&layout, 1});
}

TEST(Granularity, RoundsRowsToBlocks) {
  Descriptor d = weight({100, 48}, {Placement::dim_chunk({"dp_shard"}, 0)});
  d.granularity = Granularity::block_of(64);  // 4 rows are 3 blocks
  const Layout layout(d, mesh_of(8, 1));
  EXPECT_EQ(layout.local_shape(0), (Shape{16, 48}));
  EXPECT_EQ(layout.local_shape(6), (Shape{4, 48}));
  prove_cover({&layout, 1});
}

TEST(Granularity, KeepsMatricesWhole) {
  Descriptor experts = weight({6, 4, 5}, {Placement::flat_range({"dp_shard"})});
  experts.granularity = Granularity::matrix();
  const Layout layout(experts, mesh_of(4, 1));
  EXPECT_EQ(layout.boxes(1), (std::vector<Box>{{{2, 0, 0}, {4, 4, 5}}}));
  prove_cover({&layout, 1});
}

}  // namespace
}  // namespace chassis
