// The report about ranks of a tensor axis that lie on several machines.
#include "host/session/run_mesh.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

TEST(DistantRanks, AreThoseOfATensorAxisOnSeveralMachines) {
  const MeshShape mesh({{"pp", 2}, {"tp", 2}});
  EXPECT_EQ(distant_ranks_text(mesh, {"a", "a", "b", "b"}), "");
  EXPECT_EQ(distant_ranks_text(mesh, {"a", "a", "a", "b"}),
            "axis 'tp' joins ranks of several machines: 2 on a, 3 on b");
  EXPECT_EQ(distant_ranks_text(MeshShape({{"pp", 4}}), {"a", "b", "c", "d"}), "") << "a pipeline may cross machines";
  EXPECT_EQ(distant_ranks_text(MeshShape({{"ep", 4}}), {"a", "b", "c", "d"}), "") << "experts may, too";
}

}  // namespace
}  // namespace chassis
