// Ranks and coordinates of a mesh.
#include "host/state/mesh_shape.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

TEST(MeshShape, MakesNeighboursOnItsLastAxisNeighbouringRanks) {
  const MeshShape mesh({{"dp_shard", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.world_size(), 12);
  EXPECT_EQ(mesh.coordinates(7)[0], 1);
  EXPECT_EQ(mesh.coordinates(7)[1], 3);
  for (int rank = 0; rank < 12; ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
  EXPECT_EQ(mesh.find("tp"), 1);
  EXPECT_EQ(mesh.find("ep"), -1);
  EXPECT_EQ(mesh.text(), "dp_shard=3, tp=4");
}

TEST(MeshShape, WithoutAxesHasOneRank) { EXPECT_EQ(MeshShape().world_size(), 1); }

TEST(MeshShape, RefusesEmptyAndRepeatedAxesAndTooManyRanks) {
  EXPECT_THROW(MeshShape({{"tp", 0}}), Error);
  EXPECT_THROW(MeshShape({{"tp", 2}, {"tp", 2}}), Error);
  EXPECT_THROW(MeshShape({{"a", 1 << 20}, {"b", 1 << 20}}), Error);
}

}  // namespace
}  // namespace chassis
