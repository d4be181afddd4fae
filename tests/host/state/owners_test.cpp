// Owners of replicated tensors, balanced by bytes.
#include "host/state/owners.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "host/state/intersect.hpp"
#include "random_layout.hpp"

namespace chassis::testing {
namespace {

std::vector<int64_t> owned_bytes(const std::vector<Descriptor>& tensors, const MeshShape& mesh) {
  std::vector<int64_t> bytes(static_cast<size_t>(mesh.world_size()));
  for (const Descriptor& tensor : tensors) {
    const Layout layout(tensor, mesh);
    for (int rank = 0; rank < mesh.world_size(); ++rank)
      for (const Box& box : layout.owned_boxes(rank))
        bytes[static_cast<size_t>(rank)] += numel(box) * size_bytes(tensor.dtype);
  }
  return bytes;
}

std::map<std::string, int> owners(const std::vector<Descriptor>& tensors) {
  std::map<std::string, int> out;
  for (const Descriptor& tensor : tensors) out[tensor.fqn] = tensor.owner_replica;
  return out;
}

// Replicated over both axes, or divided evenly over one of them, of various sizes.
std::vector<Descriptor> random_tensors(Dice& dice, int num_shards) {
  std::vector<Descriptor> tensors;
  for (int64_t i = dice.roll(1, 60); i > 0; --i) {
    const int64_t rows = num_shards * dice.roll(1, 4), columns = int64_t{1} << dice.roll(2, 10);
    Descriptor d =
        Descriptor::plain("tensor." + std::to_string(i), dice.chance(50) ? Dtype::f32 : Dtype::bf16, {rows, columns});
    if (dice.chance(40)) d.placements = {Placement::dim_chunk({"dp_shard"}, 0)};
    if (dice.chance(20)) d.placements = {Placement::flat_range({"dp_replicate", "dp_shard"})};
    if (d.placements.size() == 1 && d.placements[0].axes.size() == 2)
      d.global_shape[1] = d.padded_shape[1] = columns * 64 * 63;
    tensors.push_back(d);
  }
  return tensors;
}

TEST(Owners, HaveAtMostTheMeanPlusTheLargestTensor) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Dice dice(seed);
    const auto num_replicas = static_cast<int>(dice.roll(1, 8)), num_shards = static_cast<int>(dice.roll(1, 4));
    const MeshShape mesh({{"dp_replicate", num_replicas}, {"dp_shard", num_shards}});
    std::vector<Descriptor> tensors = random_tensors(dice, num_shards);
    balance_owners(tensors, mesh);
    int64_t sum = 0, largest = 0;
    for (const Descriptor& d : tensors) {
      const int64_t bytes = numel(d.global_shape) * size_bytes(d.dtype);
      sum += bytes;
      largest = std::max(largest, bytes);
    }
    const std::vector<int64_t> bytes = owned_bytes(tensors, mesh);
    ASSERT_LE(*std::max_element(bytes.begin(), bytes.end()), sum / mesh.world_size() + largest) << seed;
  }
}

TEST(Owners, DoNotDependOnTheOrderOfTensors) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const MeshShape mesh({{"dp_replicate", 3}, {"dp_shard", 2}});
    std::vector<Descriptor> tensors = random_tensors(dice, 2), reversed(tensors.rbegin(), tensors.rend());
    balance_owners(tensors, mesh);
    balance_owners(reversed, mesh);
    ASSERT_EQ(owners(tensors), owners(reversed)) << seed;
  }
}

// Bytes that only one rank can own count: other ranks get the tensors that can be assigned.
TEST(Owners, AvoidRanksThatAlreadyOwnMuch) {
  const MeshShape mesh({{"pp", 2}, {"dp", 2}});
  std::vector<Descriptor> tensors = {Descriptor::plain("stage", Dtype::f32, {100}),
                                     Descriptor::plain("a", Dtype::f32, {10}), Descriptor::plain("b", Dtype::f32, {20}),
                                     Descriptor::plain("c", Dtype::f32, {30})};
  tensors[0].placements = {Placement::only_on({"pp"}, 0), Placement::dim_chunk({"dp"}, 0)};
  balance_owners(tensors, mesh);
  EXPECT_EQ(owned_bytes(tensors, mesh), (std::vector<int64_t>{200, 200, 120, 120}));
}

TEST(Owners, AreExactlyOneForEveryElement) {
  for (uint64_t seed = 7'000'000; seed < 7'001'000; ++seed) {
    Dice dice(seed);
    const MeshShape mesh = random_mesh(dice, 32);
    std::vector<Descriptor> tensors;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back(random_descriptor(dice, mesh, random_shape(dice, 200)));
      tensors.back().fqn += "." + std::to_string(i);
    }
    balance_owners(tensors, mesh);
    for (const Descriptor& d : tensors) {
      std::vector<int> times_owned(static_cast<size_t>(numel(d.global_shape)));
      const Layout layout(d, mesh);
      for (int rank = 0; rank < mesh.world_size(); ++rank)
        for (const Box& box : layout.owned_boxes(rank)) {
          const StridedView place = row_major_view(d.global_shape, box);
          for_each_run({box, place, place}, [&](int64_t at, int64_t, int64_t length) {
            for (; length > 0; --length) ++times_owned[static_cast<size_t>(at++)];
          });
        }
      ASSERT_EQ(std::count(times_owned.begin(), times_owned.end(), 1), numel(d.global_shape)) << seed;
    }
  }
}

}  // namespace
}  // namespace chassis::testing
