// The ranks of a run as the training loop sees them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/parallel/stack_events.hpp"
#include "host/parallel/stack_plan.hpp"
#include "host/service/comm.hpp"

namespace chassis {

// In a run of one rank the communicator has no backend, so nothing is sent.
struct Ranks {
  const StackPlan& plan;
  Communicator& communicator;
  StackEvents* bound = nullptr;  // NULL before the parameters are allocated

  StackEvents& events() const {
    CHASSIS_CHECK(bound, "no parameters are allocated");
    return *bound;
  }
  int num_data_ranks() const { return plan.num_data_ranks(); }
  int data_rank() const { return plan.data_rank(); }
  bool counts_rows() const { return plan.counts_rows(); }
  // The work of this rank in a step, in order.
  std::vector<Work> work(int64_t num_microbatches) const {
    return plan.pipeline().work(plan.stage_coordinate(), num_microbatches);
  }
  // [step][all-ranks] Sums over all ranks in rank order, so every rank gets the same bits.
  void sum(std::span<double> values, std::string_view name) const {
    communicator.sum(communicator.group({}), values, name);
  }
  // [step][all-ranks] By CHASSIS_REDUCE_SUM or CHASSIS_REDUCE_MAX over all ranks; see Communicator::reduce().
  void reduce(std::span<double> values, uint32_t reduction, std::string_view name) const {
    communicator.reduce(communicator.group({}), values, reduction, name);
  }
};

}  // namespace chassis
