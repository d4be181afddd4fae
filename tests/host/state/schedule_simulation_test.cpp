// Durations and activations in flight of simulated schedules.
#include "host/state/schedule_simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "host/state/schedule_generators.hpp"

namespace chassis {
namespace {

// A stage is divided into v chunks.
StageCost chunk_cost(int num_chunks) {
  const double part = 1.0 / num_chunks;
  return {part, part, part, 0.0, part, part};
}

TEST(Simulation, HasTheBubbleOfGPipeAnd1F1B) {
  for (const bool is_gpipe : {true, false}) {
    const Schedule schedule = is_gpipe ? gpipe_schedule(8, 32) : one_f_one_b_schedule(8, 32);
    const Simulation simulation = simulate(schedule, StageCost{});
    EXPECT_NEAR(simulation.bubble_share(), 0.1795, 5e-5);
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_DOUBLE_EQ(simulation.bubble(rank), 21.0);
      EXPECT_DOUBLE_EQ(simulation.peak_activations[static_cast<size_t>(rank)], is_gpipe ? 32 : 8 - rank);
    }
  }
}

TEST(Simulation, HasTheBubbleOfInterleavedSchedules) {
  const Simulation two = simulate(interleaved_schedule(8, 2, 32, 8), chunk_cost(2));
  EXPECT_NEAR(two.bubble_share(), 0.0986, 5e-5);
  EXPECT_DOUBLE_EQ(two.peak_activations[0], 11.5);
  const Simulation four = simulate(interleaved_schedule(8, 4, 32, 8), chunk_cost(4));
  EXPECT_NEAR(four.bubble_share(), 0.0519, 5e-5);
  EXPECT_DOUBLE_EQ(four.peak_activations[0], 9.75);
}

TEST(Simulation, HasMoreActivationsInFlightIfGroupsAreLarger) {
  const Simulation simulation = simulate(interleaved_schedule(8, 2, 32, 16), chunk_cost(2));
  EXPECT_NEAR(simulation.bubble_share(), 0.0986, 5e-5);
  EXPECT_DOUBLE_EQ(simulation.peak_activations[0], 15.5);
}

TEST(Simulation, HasTheBubbleOfZbH1) {
  const Simulation simulation = simulate(zb_h1_schedule(8, 32), StageCost{});
  EXPECT_DOUBLE_EQ(simulation.makespan, 32 * 3 + 7);
  for (int rank = 0; rank < 8; ++rank) EXPECT_DOUBLE_EQ(simulation.peak_activations[static_cast<size_t>(rank)], 8.0);
}

TEST(Simulation, CountsWhatBackwardParamsKeeps) {
  const StageCost quarter_kept = {1, 1, 1, 0, 1, 0.25};
  const Simulation simulation = simulate(zb_h1_schedule(8, 32), quarter_kept);
  EXPECT_DOUBLE_EQ(simulation.peak_activations[0], 8.0);
  EXPECT_DOUBLE_EQ(simulation.peak_activations[7], 1.0 + 7 * 0.25);
}

TEST(Simulation, WaitsForTransfers) {
  const Simulation simulation = simulate(one_f_one_b_schedule(2, 1), StageCost{1, 1, 1, 0.25, 1, 1});
  ASSERT_EQ(simulation.spans[1].size(), 2u);
  EXPECT_DOUBLE_EQ(simulation.spans[1][0].start, 1.25);
  EXPECT_DOUBLE_EQ(simulation.spans[1][1].end, 4.25);
  EXPECT_DOUBLE_EQ(simulation.spans[0][1].start, 4.5);
  EXPECT_DOUBLE_EQ(simulation.makespan, 6.5);
}

TEST(Simulation, UsesTheCostsOfEachStage) {
  const std::vector<StageCost> costs = {{1, 2, 3, 0.5, 10, 10}, {4, 5, 6, 0.25, 20, 20}};
  const Simulation simulation = simulate(one_f_one_b_schedule(2, 1), costs);
  EXPECT_DOUBLE_EQ(simulation.makespan, 1 + 0.5 + 4 + 11 + 0.5 + 5);
  EXPECT_DOUBLE_EQ(simulation.busy[1], 15);
  EXPECT_DOUBLE_EQ(simulation.peak_activations[1], 20);
}

TEST(Simulation, TransfersNothingWithinARank) {
  const Schedule schedule = make_schedule({"zbv", 1, 2, 3, 0, {}});
  EXPECT_DOUBLE_EQ(simulate(schedule, StageCost{1, 1, 1, 5.0, 1, 1}).makespan, 18.0);
}

}  // namespace
}  // namespace chassis
