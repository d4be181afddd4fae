// Places of stages, and names of entries.
#include "host/state/schedule.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

TEST(StageMap, LaysInterleavedStagesOneRankAfterTheOther) {
  const StageMap map = StageMap::interleaved(4, 2);
  EXPECT_EQ(map.num_stages(), 8);
  for (int rank = 0; rank < 4; ++rank)
    for (int chunk = 0; chunk < 2; ++chunk) EXPECT_EQ(map.stage(rank, chunk), chunk * 4 + rank);
}

TEST(StageMap, LaysTheFirstAndTheLastStageOfAVOnRankZero) {
  const StageMap map = StageMap::v_shaped(3);
  EXPECT_EQ(map.stage(0, 0), 0);
  EXPECT_EQ(map.stage(0, 1), 5);
  EXPECT_EQ(map.stage(2, 0), 2);
  EXPECT_EQ(map.stage(2, 1), 3);
}

TEST(StageMap, FindsRankAndChunkOfEachStage) {
  for (const StageMap& map : {StageMap(), StageMap::interleaved(3, 4), StageMap::v_shaped(5), StageMap({1, 0, 0, 2})})
    for (int stage = 0; stage < map.num_stages(); ++stage)
      EXPECT_EQ(map.stage(map.rank(stage), map.chunk(stage)), stage);
  EXPECT_EQ(StageMap({1, 0, 0, 2}).num_chunks(0), 2);
}

TEST(StageMap, RefusesARankWithoutAStage) { EXPECT_THROW(StageMap({0, 2}), Error); }

TEST(SequentialSchedule, IsForwardAndBackwardInTurn) {
  const std::vector<Work> schedule = sequential_schedule(2);
  ASSERT_EQ(schedule.size(), 4u);
  EXPECT_EQ(schedule[1], (Work{Work::Kind::kBackward, 0, 0}));
  EXPECT_EQ(schedule[2], (Work{Work::Kind::kForward, 0, 1}));
  EXPECT_EQ(text(schedule[3]), "backward of chunk 0, micro-batch 1");
}

}  // namespace
}  // namespace chassis
