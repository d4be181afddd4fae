// Plans how tensors move from one sharding to another among the ranks of a run: in rounds of copies, in which no rank
// sends or receives more than a budget. Pure arithmetic, the same on every rank. host/checkpoint/reshard.hpp executes
// it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/state/intersect.hpp"
#include "host/state/layout.hpp"

namespace chassis {

struct ReshardTensor {
  Layout from;
  Layout to;
};

struct ReshardOptions {
  int64_t budget_bytes = int64_t{16} << 20;  // the maximum that a rank sends in a round, and that it receives
  // True: every rank that holds elements has their values, so that it copies what it can from itself, and other ranks
  // get them from the holder that has sent the fewest bytes. False: only owners have values, and send them to all other
  // holders; with equal layouts that is a broadcast.
  bool replicas_are_filled = true;
  // True: tensors move one after the other, so that few are held twice at a time. False: all may move in any round, so
  // that there are fewer rounds if tensors go to different ranks.
  bool in_sequence = true;
  int64_t align_bytes = 1;  // a move counts against the budget with its bytes rounded up to a multiple
};

struct ReshardMove {
  uint32_t tensor = 0;
  int from_rank = 0;
  int to_rank = 0;  // if equal to from_rank, the move does not count against the budget
  Copy copy;
  Dtype dtype = Dtype::f32;  // that of `from`, in which elements are sent
  int64_t num_bytes = 0;

  bool is_local() const { return from_rank == to_rank; }
};

struct ReshardPlan {
  struct Round {
    std::vector<ReshardMove> moves;  // in an order that sender and receiver share
    bool is_local = true;            // no rank sends anything
  };
  // The rounds of a tensor. Its destination must exist from the first one on, its source until the last one is done.
  struct Lifetime {
    uint32_t first_round = 0;
    uint32_t last_round = 0;
  };

  std::vector<Round> rounds;
  std::vector<Lifetime> lifetimes;  // by tensor; in sequence, first and last rounds never decrease
  int64_t sent_bytes = 0;           // over all rounds and ranks
};

// A tensor starts in the last round of the previous one, or, if not in sequence, in the first. Every element of every
// destination is written exactly once. Only moves of `rank` are kept, or all if it is -1. Throws if the layouts of a
// tensor have different shapes, or if one element exceeds the budget.
ReshardPlan plan_reshard(std::span<const ReshardTensor> tensors, const ReshardOptions& options, int rank);

}  // namespace chassis
