// Groups of ranks that store the same amounts.
#include "host/state/rank_kinds.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "host/state/layout.hpp"

namespace chassis {
namespace {

using Groups = std::vector<std::vector<int>>;

Groups kinds(const std::vector<Descriptor>& tensors, const MeshShape& mesh) {
  std::vector<const Descriptor*> pointers;
  for (const Descriptor& d : tensors) pointers.push_back(&d);
  return rank_kinds(pointers, mesh);
}

// The same groups, found by computing the size of every tensor on every rank.
Groups kinds_one_by_one(const std::vector<Descriptor>& tensors, const MeshShape& mesh) {
  std::map<std::vector<int64_t>, size_t> group_of;
  Groups groups;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::vector<int64_t> stored;
    for (const Descriptor& d : tensors) stored.push_back(numel(Layout(d, mesh).local_shape(rank)));
    const auto [found, fresh] = group_of.emplace(stored, groups.size());
    if (fresh) groups.emplace_back();
    groups[found->second].push_back(rank);
  }
  return groups;
}

Descriptor tensor(const std::string& name, const Shape& shape, std::vector<Placement> placements) {
  Descriptor d = Descriptor::plain(name, Dtype::f32, shape);
  d.placements = std::move(placements);
  return d;
}

TEST(RankKinds, EqualThoseComputedRankByRank) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    const MeshShape mesh({{"dp_replicate", 1 + static_cast<int>(below(3))},
                          {"dp_shard", 1 + static_cast<int>(below(9))},
                          {"ep", 1 + static_cast<int>(below(2))},
                          {"tp", 1 + static_cast<int>(below(2))}});
    std::vector<std::string> axes = {"dp_shard"};
    if (below(2)) axes.insert(axes.begin(), "dp_replicate");
    std::vector<Descriptor> tensors;
    for (int i = 0; i < 4; ++i) {
      const Shape shape = {1 + below(40), 1 + below(5)};
      std::vector<Placement> placements;
      if (below(4)) placements.push_back(below(2) ? Placement::dim_chunk(axes, 0) : Placement::flat_range(axes));
      if (below(8) == 0) placements.insert(placements.begin(), Placement::dim_chunk({"tp"}, 1));
      if (below(8) == 0) placements.insert(placements.begin(), Placement::dim_chunk({"ep"}, 0));
      tensors.push_back(tensor("t" + std::to_string(i), shape, placements));
      if (below(3) == 0) tensors.back().granularity = chassis::Granularity::block_of(1 + below(6));
    }
    EXPECT_EQ(kinds(tensors, mesh), kinds_one_by_one(tensors, mesh)) << round;
  }
}

TEST(RankKinds, JoinRanksWithAsManyWholeTensorsOfEachSize) {
  const MeshShape mesh({{"dp_shard", 4}});
  const auto on = [](int coordinate) { return std::vector{Placement::only_on({"dp_shard"}, coordinate)}; };
  const std::vector<Descriptor> tensors = {tensor("a", {4, 4}, on(0)), tensor("b", {4, 4}, on(1)),
                                           tensor("c", {2, 2}, on(2)), tensor("d", {2, 2}, on(0)),
                                           tensor("e", {2, 2}, on(1))};
  EXPECT_EQ(kinds(tensors, mesh), (Groups{{0, 1}, {2}, {3}}));
}

TEST(RankKinds, AreFewForAMillionRanks) {
  const MeshShape mesh({{"dp_shard", 1 << 20}});
  std::vector<Descriptor> tensors;
  for (int i = 0; i < 1000; ++i)
    tensors.push_back(tensor("t" + std::to_string(i), {128256 + i % 3, 4096}, {Placement::flat_range({"dp_shard"})}));
  const Groups groups = kinds(tensors, mesh);
  EXPECT_LE(groups.size(), 8u);
  size_t num_ranks = 0;
  for (const auto& group : groups) num_ranks += group.size();
  EXPECT_EQ(num_ranks, size_t{1} << 20);
}

}  // namespace
}  // namespace chassis
