// The ranks of a run as the training loop sees them.
#pragma once

#include <span>
#include <string_view>

#include "host/program/parallel_stack.hpp"
#include "host/service/comm.hpp"

namespace chassis {

// Alone: no strategy, no communication, every sum is this process's own.
struct Ranks {
  ParallelStack* stack = nullptr;
  Communicator* communicator = nullptr;

  int num_data_ranks() const { return stack ? stack->num_data_ranks() : 1; }
  int data_rank() const { return stack ? stack->data_rank() : 0; }
  // [step][all-ranks] Over all ranks, in rank order: the same bits everywhere.
  void sum(std::span<double> values, std::string_view name) const {
    if (communicator) communicator->sum(communicator->group({}), values, name);
  }
};

}  // namespace chassis
