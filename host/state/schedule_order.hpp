// The entries that each entry of a schedule waits for, and an order in which all entries can run.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis {

// Entry `entry` in the list of `rank`; -1: none.
struct WorkPlace {
  int rank = -1;
  int entry = -1;
  bool exists() const { return rank >= 0; }
  bool operator==(const WorkPlace&) const = default;
};

class ScheduleOrder {
 public:
  // Chunks and micro-batches must be in range. The schedule must outlive it.
  explicit ScheduleOrder(const Schedule& schedule);

  WorkPlace forward(int stage, int microbatch) const { return place(forward_, stage, microbatch); }
  // The backward or the backward_inputs.
  WorkPlace backward(int stage, int microbatch) const { return place(backward_, stage, microbatch); }
  WorkPlace backward_params(int stage, int microbatch) const { return place(backward_params_, stage, microbatch); }

  const Work& work(WorkPlace at) const { return list(at.rank)[static_cast<size_t>(at.entry)]; }
  int stage(WorkPlace at) const { return schedule_.stages.stage(at.rank, work(at).chunk); }

  // The entries that an entry waits for, if every stage has its entries: one of the same stage (its forward; for
  // backward_params its backward_inputs), and one of the previous stage (forward) or the next stage (backward).
  struct Needs {
    WorkPlace own;
    WorkPlace neighbour;
  };
  Needs needs(WorkPlace at) const;

  // Visits entries so that each comes after all that it needs and after those before it in its rank's list. Returns for
  // each rank the number of entries visited: all of them unless the ranks wait for each other.
  std::vector<int> run(const std::function<void(WorkPlace)>& visit) const;
  // The entry that keeps the entry `at` from running after each rank has run `num_run` of its entries.
  WorkPlace missing(WorkPlace at, const std::vector<int>& num_run) const;

 private:
  using Entries = std::vector<int>;  // by stage and micro-batch; -1: none

  const std::vector<Work>& list(int rank) const { return schedule_.ranks[static_cast<size_t>(rank)]; }
  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(schedule_.num_microbatches) +
           static_cast<size_t>(microbatch);
  }
  WorkPlace place(const Entries& entries, int stage, int microbatch) const;

  const Schedule& schedule_;
  Entries forward_, backward_, backward_params_;
};

}  // namespace chassis
