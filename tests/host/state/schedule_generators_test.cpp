// Named schedules of many sizes: each is proven, and its bubble and activations in flight equal the formulas.
#include "host/state/schedule_generators.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/state/schedule_proof.hpp"
#include "random_layout.hpp"
#include "schedule_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::testing {
namespace {

constexpr int kMaxRanks = 8;
constexpr double kRounding = 1e-9;

std::string size_text(int num_ranks, int num_microbatches) {
  return std::to_string(num_ranks) + " ranks, " + std::to_string(num_microbatches) + " micro-batches";
}

void expect_bubble(const Simulation& simulation, double bubble) {
  for (size_t rank = 0; rank < simulation.busy.size(); ++rank)
    ASSERT_NEAR(simulation.bubble(static_cast<int>(rank)), bubble, kRounding) << rank;
}

StageCost random_cost(Dice& dice) {
  const auto time = [&] { return static_cast<double>(dice.roll(1, 16)) / 8.0; };
  return {time(), time(), time(), 0.0, 1.0, 1.0};
}

TEST(GPipeSchedule, EqualsTheFormulas) {
  Dice dice(1);
  for (int p = 1; p <= kMaxRanks; ++p)
    for (int m = 1; m <= 3 * p; ++m) {
      SCOPED_TRACE(size_text(p, m));
      const Schedule schedule = gpipe_schedule(p, m);
      ASSERT_NO_THROW(prove_schedule(schedule));
      const StageCost cost = random_cost(dice);
      const Simulation simulation = simulate(schedule, cost);
      expect_bubble(simulation, (p - 1) * (cost.forward + cost.backward_inputs + cost.backward_params));
      ASSERT_EQ(simulation.peak_activations, std::vector<double>(static_cast<size_t>(p), m));
    }
}

TEST(OneFOneBSchedule, EqualsTheFormulas) {
  Dice dice(2);
  for (int p = 1; p <= kMaxRanks; ++p)
    for (int m = 1; m <= 3 * p; ++m) {
      SCOPED_TRACE(size_text(p, m));
      const Schedule schedule = one_f_one_b_schedule(p, m);
      ASSERT_NO_THROW(prove_schedule(schedule));
      const StageCost cost = random_cost(dice);
      const Simulation simulation = simulate(schedule, cost);
      expect_bubble(simulation, (p - 1) * (cost.forward + cost.backward_inputs + cost.backward_params));
      for (int rank = 0; rank < p; ++rank)
        ASSERT_DOUBLE_EQ(simulation.peak_activations[static_cast<size_t>(rank)], std::min(m, p - rank));
    }
}

TEST(InterleavedSchedule, EqualsTheFormulas) {
  Dice dice(3);
  for (int p = 2; p <= kMaxRanks; ++p)
    for (int v = 2; v <= 4; ++v)
      for (int g = p; g <= 2 * p; ++g)
        for (int m = g; m <= 3 * g; m += g) {
          SCOPED_TRACE(size_text(p, m) + ", " + std::to_string(v) + " chunks, groups of " + std::to_string(g));
          const Schedule schedule = interleaved_schedule(p, v, m, g);
          ASSERT_NO_THROW(prove_schedule(schedule));
          StageCost cost = random_cost(dice);
          cost.activations = cost.kept_for_params = 1.0 / v;
          const Simulation simulation = simulate(schedule, cost);
          expect_bubble(simulation, (p - 1) * (cost.forward + cost.backward_inputs + cost.backward_params));
          if (g > p || m == p) continue;
          ASSERT_NEAR(simulation.peak_activations[0], p * (1 + (p - 1.0) / (p * v)), kRounding);
        }
}

TEST(InterleavedSchedule, IsRefusedIfItHasADeadlock) {
  int num_refused = 0;
  for (int p = 2; p <= 5; ++p)
    for (int v = 2; v <= 3; ++v)
      for (int g = 1; g <= 2 * p; ++g)
        for (int m = 1; m <= 4 * p; ++m) {
          SCOPED_TRACE(size_text(p, m) + ", " + std::to_string(v) + " chunks, groups of " + std::to_string(g));
          const Schedule schedule = interleaved_schedule(p, v, m, g);
          const bool is_valid = ScheduleRun(schedule).succeeded();
          ASSERT_EQ(schedule_faults(schedule).empty(), is_valid);
          bool is_refused = false;
          try {
            ASSERT_EQ(make_schedule({"interleaved", p, v, m, g, {}}), schedule);
          } catch (const Error&) {
            is_refused = true;
          }
          ASSERT_EQ(is_refused, !is_valid);
          num_refused += is_refused;
        }
  EXPECT_GT(num_refused, 100);
}

TEST(ZbH1Schedule, EqualsTheFormulas) {
  Dice dice(4);
  for (int p = 1; p <= kMaxRanks; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      SCOPED_TRACE(size_text(p, m));
      const Schedule schedule = zb_h1_schedule(p, m);
      ASSERT_NO_THROW(prove_schedule(schedule));
      for (const double peak : simulate(schedule, StageCost{}).peak_activations) ASSERT_DOUBLE_EQ(peak, std::min(m, p));
      if (m < p) continue;
      StageCost cost = random_cost(dice);
      cost.backward_params = std::min({cost.backward_params, cost.backward_inputs, cost.forward});
      const Simulation simulation = simulate(schedule, cost);
      expect_bubble(simulation, (p - 1) * (cost.forward + cost.backward_inputs - cost.backward_params));
    }
}

TEST(ZbvSchedule, HasNoBubbleBetweenTheFirstAndTheLastEntryOfARank) {
  for (int p = 1; p <= kMaxRanks; ++p)
    for (int m = 2 * p - 1; m <= 5 * p; ++m) {
      SCOPED_TRACE(size_text(p, m));
      const Schedule schedule = make_schedule({"zbv", p, 2, m, 0, {}});
      ASSERT_NO_THROW(prove_schedule(schedule));
      const Simulation simulation = simulate(schedule, StageCost{0.5, 0.5, 0.5, 0.0, 0.5, 0.5});
      expect_bubble(simulation, (p - 1) * 0.5);
      for (const std::vector<WorkSpan>& spans : simulation.spans)
        ASSERT_NEAR(spans.back().end - spans.front().start, m * 3.0, kRounding);
      for (const double peak : simulation.peak_activations) ASSERT_LE(peak, p);
    }
}

TEST(ZbvSchedule, IsAtMostAsLongAs1F1BAndHoldsAsMuch) {
  Dice dice(5);
  for (int p = 1; p <= kMaxRanks; ++p)
    for (int m = 1; m <= 3 * p; ++m) {
      SCOPED_TRACE(size_text(p, m));
      const StageCost whole = random_cost(dice);
      const StageCost half = {whole.forward / 2, whole.backward_inputs / 2, whole.backward_params / 2, 0.0, 0.5, 0.5};
      const std::vector<StageCost> costs(static_cast<size_t>(2 * p), half);
      const Schedule schedule = make_schedule({"zbv", p, 2, m, 0, costs});
      ASSERT_NO_THROW(prove_schedule(schedule));
      const Simulation simulation = simulate(schedule, costs);
      ASSERT_LE(simulation.makespan, simulate(one_f_one_b_schedule(p, m), whole).makespan + kRounding);
      for (const double peak : simulation.peak_activations) ASSERT_LE(peak, p);
    }
}

TEST(ZbvSchedule, IsProvenForStagesOfUnequalCost) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const int p = static_cast<int>(dice.roll(1, 6)), m = static_cast<int>(dice.roll(1, 16));
    std::vector<StageCost> costs(static_cast<size_t>(2 * p));
    for (StageCost& cost : costs) {
      cost = random_cost(dice);
      cost.transfer = static_cast<double>(dice.roll(0, 3)) / 8.0;
    }
    const Schedule schedule = make_schedule({"zbv", p, 2, m, 0, costs});
    ASSERT_NO_THROW(prove_schedule(schedule)) << seed;
    for (const double peak : simulate(schedule, StageCost{}).peak_activations) ASSERT_LE(peak, 2 * p) << seed;
  }
}

TEST(Schedules, AreRefusedWithBothNumbers) {
  const auto message = [](const ScheduleRequest& request) -> std::string {
    try {
      make_schedule(request);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_HAS(message({"1f1c", 2, 1, 4, 0, {}}), "'1f1c' does not exist; there are gpipe, 1f1b, interleaved");
  EXPECT_HAS(message({"1f1b", 2, 2, 4, 0, {}}), "'1f1b' has 1 chunks per rank, not 2");
  EXPECT_HAS(message({"zbv", 2, 1, 4, 0, {}}), "'zbv' has 2 chunks per rank, not 1");
  EXPECT_HAS(message({"interleaved", 2, 1, 4, 0, {}}), "needs at least 2 chunks per rank, not 1");
  const std::string short_groups = message({"interleaved", 8, 2, 32, 4, {}});
  EXPECT_HAS(short_groups, "with 8 ranks and 32 micro-batches in groups of 4 cannot run: rank 0, entry ");
  const std::string short_last_group = message({"interleaved", 8, 2, 12, 0, {}});
  EXPECT_HAS(short_last_group, "with 8 ranks and 12 micro-batches in groups of 8, the last of 4, cannot run: rank ");
  EXPECT_HAS(short_last_group, "such as 8 micro-batches in groups of 8");
  EXPECT_EQ(message({"interleaved", 8, 2, 16, 0, {}}), "");
}

}  // namespace
}  // namespace chassis::testing
