// The ranks of a run as the training loop sees them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "host/parallel/parallel_stack.hpp"
#include "host/service/comm.hpp"

namespace chassis {

// In a run of one rank the communicator has no backend, so nothing is sent.
struct Ranks {
  ParallelStack& stack;
  Communicator& communicator;

  int num_data_ranks() const { return stack.num_data_ranks(); }
  int data_rank() const { return stack.data_rank(); }
  bool counts_rows() const { return stack.counts_rows(); }
  // The work of this rank in a step, in order.
  std::vector<Work> work(int64_t num_microbatches) const {
    return stack.pipeline().work(stack.stage_coordinate(), num_microbatches);
  }
  // [step][all-ranks] Sums over all ranks in rank order, so every rank gets the same bits.
  void sum(std::span<double> values, std::string_view name) const {
    communicator.sum(communicator.group({}), values, name);
  }
};

}  // namespace chassis
