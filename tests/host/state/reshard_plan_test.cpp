// Plans of resharding: what is sent, rounds and refusals.
#include "host/state/reshard_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {
namespace {

const MeshShape kEight({{"dp_shard", 8}});

Layout layout(const Shape& shape, std::vector<Placement> placements, const MeshShape& mesh = kEight,
              Dtype dtype = Dtype::f32) {
  Descriptor d = Descriptor::plain("w", dtype, shape);
  d.placements = std::move(placements);
  return Layout(d, mesh);
}
Placement rows() { return Placement::dim_chunk({"dp_shard"}, 0); }
Placement columns() { return Placement::dim_chunk({"dp_shard"}, 1); }
Placement flat() { return Placement::flat_range({"dp_shard"}); }

std::string refusal(const ReshardTensor& tensor, const ReshardOptions& options = {}) {
  try {
    plan_reshard({&tensor, 1}, options, -1);
  } catch (const Error& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(Reshard, SendsNothingBetweenEqualLayouts) {
  const ReshardTensor same{layout({64, 8}, {rows()}), layout({64, 8}, {rows()})};
  const ReshardPlan plan = plan_reshard({&same, 1}, {}, -1);
  EXPECT_EQ(plan.sent_bytes, 0);
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_TRUE(plan.rounds[0].is_local);
  EXPECT_EQ(plan.rounds[0].moves.size(), 8u);
}

TEST(Reshard, CopiesWithinARankWhatTheRankHas) {
  const ReshardTensor cut{layout({64, 8}, {}), layout({64, 8}, {rows()})};
  EXPECT_EQ(plan_reshard({&cut, 1}, {}, -1).sent_bytes, 0);
  const ReshardTensor joined{layout({64, 8}, {rows()}), layout({64, 8}, {})};
  EXPECT_EQ(plan_reshard({&joined, 1}, {}, -1).sent_bytes, 7 * 64 * 8 * 4);
}

TEST(Reshard, FillsReplicasFromOwnersIfOnlyOwnersAreFilled) {
  const MeshShape mesh({{"dp_replicate", 2}, {"dp_shard", 4}});
  const ReshardTensor replicas{layout({64, 8}, {rows()}, mesh), layout({64, 8}, {rows()}, mesh)};
  ReshardOptions options;
  options.replicas_are_filled = false;
  const ReshardPlan plan = plan_reshard({&replicas, 1}, options, -1);
  EXPECT_EQ(plan.sent_bytes, 64 * 8 * 4);
  for (const ReshardMove& move : plan.rounds[0].moves) {
    EXPECT_LT(move.from_rank, 4);
    EXPECT_TRUE(move.is_local() || move.to_rank == move.from_rank + 4);
  }
}

// With one sender per element, half of the ranks would send everything.
TEST(Reshard, LetsAllReplicasSend) {
  const MeshShape mesh({{"dp_replicate", 2}, {"dp_shard", 4}});
  const Layout from = layout({64, 64}, {rows()}, mesh), to = layout({64, 64}, {columns()}, mesh);
  const ReshardTensor tensor{from, to};
  ReshardOptions options;
  options.budget_bytes = 512;
  const ReshardPlan plan = plan_reshard({&tensor, 1}, options, -1);
  const int64_t share = 64 * 64 * 4 / 4, needed = share / 4 * 3;  // a quarter of its share is on the rank
  std::vector<int64_t> sent(8);
  for (const auto& round : plan.rounds)
    for (const ReshardMove& move : round.moves)
      if (!move.is_local()) sent[static_cast<size_t>(move.from_rank)] += move.num_bytes;
  EXPECT_EQ(sent, std::vector<int64_t>(8, needed));
  EXPECT_EQ(plan.sent_bytes, 8 * needed);
  const auto rounds_of_owners = static_cast<size_t>(2 * needed / options.budget_bytes);
  EXPECT_LT(plan.rounds.size(), rounds_of_owners * 3 / 4);

  // One replica gives to a layout without replicas, of which each rank needs an eighth.
  const ReshardTensor divided{from, layout({64, 64}, {flat()})};
  std::fill(sent.begin(), sent.end(), 0);
  for (const auto& round : plan_reshard({&divided, 1}, options, -1).rounds)
    for (const ReshardMove& move : round.moves)
      if (!move.is_local()) sent[static_cast<size_t>(move.from_rank)] += move.num_bytes;
  EXPECT_LE(*std::max_element(sent.begin(), sent.end()), share / 2 + options.budget_bytes / 4);
}

TEST(Reshard, MovesTensorsToDifferentRanksInTheSameRoundsIfNotInSequence) {
  std::vector<ReshardTensor> tensors;
  for (int t = 0; t < 8; ++t)
    tensors.push_back({layout({64, 8}, {rows()}), layout({64, 8}, {Placement::only_on({"dp_shard"}, t)})});
  ReshardOptions options;
  options.budget_bytes = 256;
  EXPECT_GE(plan_reshard(tensors, options, -1).rounds.size(), 7u * 7u);
  options.in_sequence = false;
  EXPECT_LE(plan_reshard(tensors, options, -1).rounds.size(), 14u);
}

TEST(Reshard, RoundsMovesUpToTheAlignment) {
  const MeshShape two({{"dp_shard", 2}});
  const ReshardTensor tensor{layout({30}, {Placement::only_on({"dp_shard"}, 0)}, two, Dtype::u8),
                             layout({30}, {Placement::only_on({"dp_shard"}, 1)}, two, Dtype::u8)};
  ReshardOptions options;
  options.budget_bytes = 16;
  options.align_bytes = 8;
  const ReshardPlan plan = plan_reshard({&tensor, 1}, options, -1);
  EXPECT_EQ(plan.rounds.size(), 4u);  // two moves of 4 bytes in each
  EXPECT_EQ(plan.sent_bytes, 30);
  options.budget_bytes = 7;
  EXPECT_NE(refusal(tensor, options).find("the budget is less than one element"), std::string::npos);
}

TEST(Reshard, SplitsAMoveThatIsLargerThanTheBudget) {
  const MeshShape two({{"dp_shard", 2}});
  const ReshardTensor tensor{layout({100, 10}, {Placement::only_on({"dp_shard"}, 0)}, two),
                             layout({100, 10}, {Placement::only_on({"dp_shard"}, 1)}, two)};
  ReshardOptions options;
  options.budget_bytes = 400;  // ten rows
  const ReshardPlan plan = plan_reshard({&tensor, 1}, options, -1);
  EXPECT_GE(plan.rounds.size(), 10u);
  EXPECT_LE(plan.rounds.size(), 13u);
  options.budget_bytes = 8;  // less than a row
  EXPECT_EQ(plan_reshard({&tensor, 1}, options, -1).rounds.size(), 500u);
}

TEST(Reshard, PutsSmallTensorsIntoOneRoundAndLargeOnesIntoSeveral) {
  std::vector<ReshardTensor> tensors;
  for (int t = 0; t < 100; ++t) tensors.push_back({layout({64}, {rows()}), layout({64}, {flat()})});
  for (int t = 0; t < 100; ++t) tensors.push_back({layout({64, 8}, {rows()}), layout({64, 8}, {columns()})});
  ReshardOptions options;
  options.budget_bytes = 64 * 8 * 4;  // eight of the large ones' shares
  const ReshardPlan plan = plan_reshard(tensors, options, -1);
  EXPECT_EQ(plan.lifetimes[99].last_round, 0u);
  EXPECT_GE(plan.rounds.size(), 11u);
  EXPECT_LE(plan.rounds.size(), 15u);
  for (const auto& lifetime : plan.lifetimes) EXPECT_LE(lifetime.last_round - lifetime.first_round, 1u);
}

TEST(Reshard, NeedsFewMoreRoundsThanTheBusiestRankHasBytes) {
  const MeshShape mesh({{"dp_shard", 16}, {"tp", 4}});
  const ReshardTensor tensor{layout({4096, 4096}, {Placement::dim_chunk({"tp"}, 0), rows()}, mesh, Dtype::bf16),
                             layout({4096, 4096}, {Placement::dim_chunk({"tp"}, 1), flat()}, mesh, Dtype::bf16)};
  ReshardOptions options;
  options.budget_bytes = 1 << 16;
  const ReshardPlan plan = plan_reshard({&tensor, 1}, options, -1);
  const int64_t share = 4096 * 4096 * 2 / 64;
  EXPECT_LE(plan.rounds.size(), static_cast<size_t>(1 + share / options.budget_bytes * 8 / 3));
}

// Time is printed but not asserted, since the machine may be busy.
TEST(Reshard, PlansALargeModelForOneRank) {
  const MeshShape mesh({{"dp_shard", 64}});
  std::vector<ReshardTensor> tensors;
  int64_t model_bytes = 0;
  for (int t = 0; t < 291; ++t) {  // about Llama-3.1-8B
    tensors.push_back(
        {layout({4096, 6400}, {rows()}, mesh, Dtype::bf16), layout({4096, 6400}, {columns()}, mesh, Dtype::bf16)});
    model_bytes += 4096 * 6400 * 2;
  }
  const std::clock_t start = std::clock();
  const ReshardPlan plan = plan_reshard(tensors, {}, 17);
  std::printf("reshard of %.1f GB over 64 ranks, rows to columns: %zu rounds, planned in %.2f s of CPU\n",
              static_cast<double>(model_bytes) / 1e9, plan.rounds.size(),
              static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  EXPECT_EQ(plan.sent_bytes, model_bytes / 64 * 63);
  for (const auto& round : plan.rounds)
    EXPECT_TRUE(std::all_of(round.moves.begin(), round.moves.end(),
                            [](const ReshardMove& m) { return m.from_rank == 17 || m.to_rank == 17; }));
}

TEST(Reshard, RefusesTensorsThatCannotMove) {
  EXPECT_NE(refusal({layout({64}, {rows()}), layout({65}, {rows()})}).find("has shape [65], its source 'w' [64]"),
            std::string::npos);
  const Layout gap =
      layout({8}, {Placement::flat_ranges({"dp_shard"}, {{0, 4}, {5, 3}})}, MeshShape({{"dp_shard", 2}}));
  EXPECT_NE(refusal({gap, layout({8}, {})}).find("elements have no owner"), std::string::npos);
  ReshardOptions options;
  options.budget_bytes = 2;
  EXPECT_NE(refusal({layout({64}, {rows()}), layout({64}, {})}, options).find("the budget is less than one element"),
            std::string::npos);
}

}  // namespace
}  // namespace chassis
