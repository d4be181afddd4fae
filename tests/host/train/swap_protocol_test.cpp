// Every action of a swap × a failure of it on each rank × a second failure on the way back: the run either goes on with
// one state that has all tensors, or ends because tensors are lost.
#include "host/train/swap_protocol.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace chassis {
namespace {

// The parts of one rank that actions change.
struct Rank {
  bool old_has_tensors = true, new_has_tensors = false;
  bool old_executor = true, new_executor = false;
  bool next_exists = false;
  bool uses_new = false;
  bool saves_wait = false;
  bool is_committed = false;
};

struct Fault {
  SwapAction action;
  size_t rank;
  SwapEvent event = SwapEvent::kFailed;
};

// Carries out actions on simulated ranks, and checks what each of them needs.
class Simulation {
 public:
  Simulation(size_t num_ranks, std::vector<Fault> faults) : ranks_(num_ranks), faults_(std::move(faults)) {}

  SwapAction run() {
    SwapProtocol protocol;
    for (int i = 0; !protocol.is_over(); ++i) {
      EXPECT_LT(i, 20) << "the protocol runs in circles";
      if (i == 20) break;
      actions_.push_back(protocol.action());
      protocol.take(carry_out(protocol.action()));
    }
    return protocol.action();
  }

  const std::vector<Rank>& ranks() const { return ranks_; }
  const std::vector<SwapAction>& actions() const { return actions_; }

 private:
  SwapEvent carry_out(SwapAction action) {
    std::optional<Fault> fault;
    for (const Fault& planned : faults_)
      if (planned.action == action) fault = planned;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const bool fails = fault && fault->rank == r;
      act(action, ranks_[r], fails, fault.has_value());
    }
    return fault ? fault->event : SwapEvent::kDone;
  }

  static void act(SwapAction action, Rank& rank, bool fails, bool any_fails) {
    using A = SwapAction;
    switch (action) {
      case A::kPrepare:
        EXPECT_TRUE(rank.old_executor && !rank.next_exists);
        rank.next_exists = !fails;
        break;
      case A::kQuiesce:
        EXPECT_TRUE(rank.next_exists);
        rank.saves_wait = !fails;
        break;
      case A::kWitness:
        EXPECT_TRUE(rank.old_executor && rank.saves_wait);
        break;
      case A::kMigrate:  // turns round by itself
        EXPECT_TRUE(rank.old_has_tensors && rank.next_exists);
        rank.old_executor = false;
        rank.old_has_tensors = any_fails;
        rank.new_has_tensors = !any_fails;
        break;
      case A::kActivate:  // fails anywhere between its beginning and its end
        EXPECT_TRUE(rank.new_has_tensors);
        rank.new_executor = true;
        rank.uses_new = !fails;
        break;
      case A::kProve:
      case A::kWatch:
        EXPECT_TRUE(rank.uses_new && rank.new_executor);
        break;
      case A::kCommit:
        EXPECT_TRUE(rank.uses_new && rank.new_has_tensors);
        rank.is_committed = !any_fails;
        break;
      case A::kMoveBack:
        EXPECT_TRUE(rank.new_has_tensors && rank.next_exists && !rank.is_committed);
        rank.new_executor = rank.uses_new = false;
        if (any_fails) break;
        rank.new_has_tensors = false;
        rank.old_has_tensors = true;
        break;
      case A::kResume:
        EXPECT_TRUE(rank.old_has_tensors && !rank.new_has_tensors && !rank.uses_new);
        rank.old_executor = !fails;
        break;
      case A::kDiscard:
        EXPECT_TRUE(rank.old_executor && rank.old_has_tensors);
        rank.next_exists = false;
        break;
      default:
        ADD_FAILURE() << "an end is no action";
    }
  }

  std::vector<Rank> ranks_;
  std::vector<Fault> faults_;
  std::vector<SwapAction> actions_;
};

constexpr SwapAction kForward[] = {SwapAction::kPrepare, SwapAction::kQuiesce,  SwapAction::kWitness,
                                   SwapAction::kMigrate, SwapAction::kActivate, SwapAction::kProve,
                                   SwapAction::kWatch,   SwapAction::kCommit};

TEST(SwapProtocol, CommitsIfNothingFails) {
  Simulation simulation(2, {});
  EXPECT_EQ(simulation.run(), SwapAction::kCommitted);
  EXPECT_EQ(simulation.actions(), std::vector<SwapAction>(std::begin(kForward), std::end(kForward)));
  for (const Rank& rank : simulation.ranks()) EXPECT_TRUE(rank.is_committed && rank.new_executor);
}

TEST(SwapProtocol, EndsWithOneWholeStateWhereverARankFails) {
  int num_cases = 0;
  for (size_t num_ranks = 1; num_ranks <= 4; ++num_ranks)
    for (const SwapAction action : kForward)
      for (size_t rank = 0; rank < num_ranks; ++rank)
        for (const SwapEvent event : {SwapEvent::kFailed, SwapEvent::kCancelled}) {
          SCOPED_TRACE(std::string(name_of(action)) + " fails on rank " + std::to_string(rank) + " of " +
                       std::to_string(num_ranks));
          Simulation simulation(num_ranks, {{action, rank, event}});
          const SwapAction outcome = simulation.run();
          const bool had_moved = action >= SwapAction::kActivate;
          EXPECT_EQ(outcome, had_moved ? SwapAction::kRolledBack : SwapAction::kRefused) << name_of(outcome);
          for (const Rank& r : simulation.ranks()) {
            EXPECT_TRUE(r.old_executor && r.old_has_tensors);
            EXPECT_FALSE(r.new_has_tensors || r.uses_new || r.next_exists || r.is_committed);
          }
          ++num_cases;
        }
  EXPECT_EQ(num_cases, 160);
}

TEST(SwapProtocol, EndsTheRunIfTheWayBackFailsToo) {
  constexpr SwapAction kBack[] = {SwapAction::kMoveBack, SwapAction::kResume};
  int num_cases = 0;
  for (size_t num_ranks = 1; num_ranks <= 3; ++num_ranks)
    for (const SwapAction action : kForward)
      for (size_t first = 0; first < num_ranks; ++first)
        for (const SwapAction back : kBack)
          for (size_t second = 0; second < num_ranks; ++second) {
            SCOPED_TRACE(std::string(name_of(action)) + " fails, then " + std::string(name_of(back)));
            Simulation simulation(num_ranks, {{action, first}, {back, second}});
            const SwapAction outcome = simulation.run();
            const auto& actions = simulation.actions();
            const bool was_reached = std::find(actions.begin(), actions.end(), back) != actions.end();
            EXPECT_EQ(outcome == SwapAction::kLost, was_reached) << name_of(outcome);
            for (const Rank& r : simulation.ranks()) EXPECT_FALSE(r.is_committed);
            ++num_cases;
          }
  EXPECT_EQ(num_cases, 224);
}

TEST(SwapProtocol, EndsTheRunIfTensorsAreLost) {
  for (const SwapAction action : kForward) {
    Simulation simulation(2, {{action, 1, SwapEvent::kLost}});
    EXPECT_EQ(simulation.run(), SwapAction::kLost);
  }
}

}  // namespace
}  // namespace chassis
