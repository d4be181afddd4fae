#include "host/parallel/resolve_arguments.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/plugin/status.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

// Units: embed, layers.0, layers.1 and head, which reads the embedding's weight.
class ParallelProblemTest : public testing::Test {
 protected:
  // Two coordinates; the first has the stages 0 and 3.
  static Pipeline v_shaped() {
    Pipeline out;
    out.axis = "pp";
    out.units = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};
    out.schedule.stages = StageMap::v_shaped(2);
    return out;
  }

  Program program_ = test::SmallModel{.tied = true}.program();
  ProgramLayout layout_;
  ParameterTable parameters_{program_, layout_};
};

TEST_F(ParallelProblemTest, NumbersAllUnitsAndParametersWithoutAPipeline) {
  Pipeline whole;
  whole.units = {{0, program_.num_units()}};
  const RankUnits here = rank_units(whole, 0, program_, parameters_);
  EXPECT_EQ(here.units, (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_EQ(here.unit_names, program_.unit_names());
  ASSERT_EQ(here.parameters.size(), parameters_.all().size());
  EXPECT_EQ(here.read[0], (std::vector<uint32_t>{0, 3}));
}

TEST_F(ParallelProblemTest, NumbersTheStagesOfACoordinateFromZero) {
  const RankUnits ends = rank_units(v_shaped(), 0, program_, parameters_);
  EXPECT_EQ(ends.units, (std::vector<size_t>{0, 3}));
  EXPECT_EQ(ends.parameters, std::vector<uint32_t>{0});
  EXPECT_EQ(ends.read[0], (std::vector<uint32_t>{0, 1}));
  ASSERT_EQ(ends.chunks.size(), 2u);
  EXPECT_EQ(ends.chunks[1].stage, 3u);
  EXPECT_EQ(ends.chunks[1].first_unit, 1u);
  const RankUnits layers = rank_units(v_shaped(), 1, program_, parameters_);
  EXPECT_EQ(layers.units, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(layers.parameters.size(), parameters_.all().size() - 1);
}

TEST_F(ParallelProblemTest, FindsTheCoordinateOfARank) {
  const MeshShape mesh({{"pp", 2}, {"dp_shard", 3}});
  EXPECT_EQ(stage_coordinate(v_shaped(), mesh, 4), 1);
  EXPECT_EQ(stage_coordinate(Pipeline(), mesh, 4), 0);
}

TEST_F(ParallelProblemTest, OwnsAllThatInstancesBorrow) {
  StackContext facts;
  facts.mesh = MeshShape({{"pp", 2}});
  const ResolveArguments problem(rank_units(v_shaped(), 0, program_, parameters_), 4, 0, facts, parameters_);
  facts.mesh = MeshShape();
  parameters_.all()[0]->name = "renamed";
  const chassis_parallel_problem_t& raw = *problem.get();
  EXPECT_EQ(view_of(raw.axes[0].name), "pp");
  ASSERT_EQ(raw.num_parameters, 1u);
  EXPECT_EQ(view_of(raw.parameters[0]->name), "embed.weight");
  EXPECT_EQ(raw.parameters[0]->num_units, 2u);
  EXPECT_EQ(raw.num_stages, 4u);
}

}  // namespace
}  // namespace chassis
