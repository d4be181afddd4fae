// The proof of schedules: messages, and agreement with an oracle on damaged schedules.
#include "host/state/schedule_proof.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "host/base/error.hpp"
#include "host/state/schedule_generators.hpp"
#include "random_layout.hpp"
#include "schedule_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::testing {
namespace {

using Kind = Work::Kind;

std::string first_fault(const Schedule& schedule) {
  const std::vector<ScheduleFault> faults = schedule_faults(schedule);
  return faults.empty() ? "" : faults.front().message;
}

Schedule random_schedule(Dice& dice) {
  const int num_ranks = static_cast<int>(dice.roll(1, 5));
  const int num_microbatches = static_cast<int>(dice.roll(1, 8));
  switch (dice.roll(0, 4)) {
    case 0:
      return gpipe_schedule(num_ranks, num_microbatches);
    case 1:
      return one_f_one_b_schedule(num_ranks, num_microbatches);
    case 2:
      return zb_h1_schedule(num_ranks, num_microbatches);
    case 3:
      return interleaved_schedule(num_ranks, static_cast<int>(dice.roll(2, 3)),
                                  num_ranks * static_cast<int>(dice.roll(1, 2)), num_ranks);
    default:
      return make_schedule({"zbv", num_ranks, 2, num_microbatches, 0, {}});
  }
}

size_t random_entry(Dice& dice, const std::vector<Work>& list) {
  return static_cast<size_t>(dice.roll(0, static_cast<int64_t>(list.size()) - 1));
}

// One change to a schedule. Some changes leave it valid.
void damage(Dice& dice, Schedule& schedule) {
  std::vector<Work>& list = schedule.ranks[static_cast<size_t>(dice.roll(0, schedule.stages.num_ranks() - 1))];
  const size_t entry = random_entry(dice, list), other = random_entry(dice, list);
  const Work work = list[entry];
  switch (dice.roll(0, 6)) {
    case 0:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(entry));
      return;
    case 1:
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(other), work);
      return;
    case 2:
      std::swap(list[entry], list[other]);
      return;
    case 3:
      std::swap(list[entry], list[(entry + 1) % list.size()]);
      return;
    case 4:
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(entry));
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(std::min(other, list.size())), work);
      return;
    case 5:
      list[entry].kind = static_cast<Kind>(dice.roll(0, 3));
      return;
    default:
      list[entry].microbatch += static_cast<int>(dice.roll(-1, 1));
      list[entry].chunk += static_cast<int>(dice.roll(-1, 1));
  }
}

TEST(ScheduleProof, AgreesWithRanksThatRunADamagedSchedule) {
  int num_valid = 0, num_deadlocks = 0, num_orders = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Dice dice(seed);
    Schedule schedule = random_schedule(dice);
    ASSERT_EQ(first_fault(schedule), "") << seed;
    damage(dice, schedule);
    const ScheduleRun run(schedule);
    const std::vector<ScheduleFault> faults = schedule_faults(schedule);
    ASSERT_EQ(faults.empty(), run.succeeded()) << seed << ": " << first_fault(schedule);
    if (faults.empty()) {
      ++num_valid;
      continue;
    }
    const ScheduleFault& fault = faults.front();
    num_orders += fault.cause == ScheduleFault::Cause::kLinkOrder;
    ASSERT_GE(fault.rank, 0) << seed;
    if (fault.cause != ScheduleFault::Cause::kDeadlock) continue;
    ++num_deadlocks;
    ASSERT_EQ(static_cast<size_t>(fault.entry), run.num_run(fault.rank)) << seed;
  }
  EXPECT_GT(num_valid, 500);
  EXPECT_GT(num_deadlocks, 500);
  EXPECT_GT(num_orders, 50);
}

TEST(ScheduleProof, NamesAMissingEntry) {
  Schedule schedule = one_f_one_b_schedule(2, 3);
  std::erase(schedule.ranks[1], Work{Kind::kBackward, 0, 2});
  EXPECT_EQ(first_fault(schedule), "rank 1 has no backward of chunk 0 (stage 1), micro-batch 2");
  schedule = zb_h1_schedule(2, 3);
  std::erase(schedule.ranks[0], Work{Kind::kBackwardParams, 0, 1});
  EXPECT_EQ(first_fault(schedule),
            "rank 0 has a backward_inputs without a backward_params of chunk 0 (stage 0), micro-batch 1");
}

TEST(ScheduleProof, NamesADoubledEntryAndTheFirst) {
  Schedule schedule = gpipe_schedule(2, 2);
  schedule.ranks[0].push_back({Kind::kForward, 0, 1});
  EXPECT_EQ(first_fault(schedule),
            "rank 0, entry 4: forward of chunk 0, micro-batch 1 repeats entry 1 (forward of chunk 0, micro-batch 1)");
  schedule.ranks[0].back() = {Kind::kBackwardParams, 0, 1};
  EXPECT_EQ(first_fault(schedule),
            "rank 0, entry 4: backward_params of chunk 0, micro-batch 1 repeats entry 3 (backward of chunk 0, "
            "micro-batch 1)");
}

TEST(ScheduleProof, NamesAnEntryOutOfRange) {
  Schedule schedule = gpipe_schedule(2, 2);
  schedule.ranks[1][2].microbatch = 2;
  EXPECT_EQ(first_fault(schedule), "rank 1, entry 2: micro-batch 2 does not exist; the schedule has 2");
  schedule.ranks[1][2] = {Kind::kBackward, 1, 0};
  EXPECT_EQ(first_fault(schedule), "rank 1, entry 2: chunk 1 does not exist; the rank has 1");
  schedule.ranks.pop_back();
  EXPECT_EQ(first_fault(schedule), "the schedule has lists for 1 ranks, its stages lie on 2");
}

TEST(ScheduleProof, NamesTheEntriesOfADeadlock) {
  // Rank 0 runs the backward of micro-batch 0 before the forward of 1, rank 1 the forward of 1 before that backward.
  Schedule schedule = gpipe_schedule(2, 2);
  std::swap(schedule.ranks[0][1], schedule.ranks[0][2]);
  const std::vector<ScheduleFault> faults = schedule_faults(schedule);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].cause, ScheduleFault::Cause::kDeadlock);
  EXPECT_EQ(faults[0].rank, 0);
  EXPECT_EQ(faults[0].entry, 1);
  EXPECT_EQ(
      faults[0].message,
      "rank 0, entry 1 never runs, nor do 5 others, because of a deadlock: entry 1 of rank 0 (backward of chunk 0, "
      "micro-batch 0) needs entry 2 of rank 1 (backward of chunk 0, micro-batch 0), which comes after entry 1 of "
      "that rank; entry 1 of rank 1 (forward of chunk 0, micro-batch 1) needs entry 2 of rank 0 (forward of chunk "
      "0, micro-batch 1), which comes after entry 1 of that rank");
}

TEST(ScheduleProof, NamesAnEntryThatNeedsALaterOneOfItsRank) {
  Schedule schedule = gpipe_schedule(1, 1);
  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
  EXPECT_HAS(first_fault(schedule), "entry 0 of rank 0 (backward of chunk 0, micro-batch 0) needs entry 1 of rank 0");
}

TEST(ScheduleProof, RefusesAnotherOrderOfTakingThanOfSending) {
  Schedule schedule = gpipe_schedule(2, 2);
  std::swap(schedule.ranks[1][0], schedule.ranks[1][1]);
  const std::vector<ScheduleFault> faults = schedule_faults(schedule);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0].cause, ScheduleFault::Cause::kLinkOrder);
  EXPECT_EQ(faults[0].message,
            "entry 0 of rank 1 (forward of chunk 0, micro-batch 1) takes the activations of entry 1 of rank 0 (forward "
            "of chunk 0, micro-batch 1), but those of entry 0 of rank 0 (forward of chunk 0, micro-batch 0) arrive "
            "first; a rank must take what another rank sends in the order of sending");
}

TEST(ScheduleProof, FindsTheDeadlocksOfInterleavedGroups) {
  for (const int num_microbatches : {12, 20, 28})
    EXPECT_HAS(first_fault(interleaved_schedule(8, 2, num_microbatches, 8)), "deadlock") << num_microbatches;
  EXPECT_HAS(first_fault(interleaved_schedule(8, 2, 32, 4)), "deadlock");
  EXPECT_EQ(first_fault(interleaved_schedule(8, 2, 32, 8)), "");
}

TEST(ScheduleProof, CountsTheOtherFaults) {
  Schedule schedule = gpipe_schedule(2, 2);
  schedule.ranks[0].clear();
  try {
    prove_schedule(schedule);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    EXPECT_HAS(e.what(), "the pipeline schedule cannot run: rank 0 has no forward of chunk 0 (stage 0), micro-batch 0");
    EXPECT_HAS(e.what(), "(and 1 more faults)");
  }
}

}  // namespace
}  // namespace chassis::testing
