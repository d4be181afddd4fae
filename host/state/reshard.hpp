// How tensors move from one sharding to another among the ranks of a run: rounds of copies in which no rank sends or
// receives more than a budget. Pure arithmetic, the same on every rank; host/checkpoint/reshard.hpp carries it out.
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
  int64_t budget_bytes = int64_t{16} << 20;  // that a rank sends at most in a round, and receives at most
  // True: whoever holds elements has them, so a rank takes what it can from itself. False: only owners have been
  // filled, and send to all other holders; with equal layouts that is a broadcast.
  bool replicas_are_filled = true;
};

struct ReshardMove {
  uint32_t tensor = 0;
  int from_rank = 0;
  int to_rank = 0;  // == from_rank: within the rank, outside of the budget
  Copy copy;
  int64_t num_bytes = 0;  // in the dtype of `from`, which is the one that travels

  bool is_local() const { return from_rank == to_rank; }
};

struct ReshardPlan {
  struct Round {
    std::vector<ReshardMove> moves;  // in an order that sender and receiver share
    bool is_local = true;            // nothing travels between any ranks
  };
  // The rounds that touch a tensor: its destination has to exist from the first on, its source until the last is over.
  struct Lifetime {
    uint32_t first_round = 0;
    uint32_t last_round = 0;
  };

  std::vector<Round> rounds;
  std::vector<Lifetime> lifetimes;  // by tensor, neither of the two ever descending
  int64_t travelling_bytes = 0;     // over all rounds and ranks
};

// Tensors go one after the other, so that few are held twice at a time; neighbours share the round between them. Every
// element of every destination is written exactly once. `rank`: whose moves are kept, -1 for all. Throws if two layouts
// of a tensor are of different shapes, or a single element is over budget.
ReshardPlan plan_reshard(std::span<const ReshardTensor> tensors, const ReshardOptions& options, int rank);

}  // namespace chassis
