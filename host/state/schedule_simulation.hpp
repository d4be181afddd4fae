// How long a schedule takes and what it holds, from the costs of its stages: the makespan, the bubble, the activations
// in flight, and when each entry runs.
#pragma once

#include <span>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis {

// Times and bytes of one micro-batch in one stage, in any units.
struct StageCost {
  double forward = 1.0;
  double backward_inputs = 1.0;
  double backward_params = 1.0;
  // From the end of a forward until its outputs arrive at the next stage, and for their gradients on the way back;
  // taken as 0 if both stages lie on one rank. Ranks compute in the meantime.
  double transfer = 0.0;
  // Held from the start of a forward to the end of its backward.
  double activations = 1.0;
  // The part of `activations` that stays after backward_inputs until backward_params.
  double kept_for_params = 1.0;
};

struct WorkSpan {
  double start = 0.0;
  double end = 0.0;
};

struct Simulation {
  std::vector<std::vector<WorkSpan>> spans;  // by rank and entry
  std::vector<double> busy;                  // by rank: time in which it computes
  std::vector<double> peak_activations;      // by rank
  double makespan = 0.0;                     // from the first start to the last end

  // The time in which a rank waits, from the first start of any rank to the last end of any rank.
  double bubble(int rank) const { return makespan - busy[static_cast<size_t>(rank)]; }
  // The share of all ranks' time that is spent waiting: 0 if no rank ever waits.
  double bubble_share() const;
};

// `costs` has one element for each stage. The schedule must be proven (schedule_proof.hpp).
Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs);
// All stages cost the same.
Simulation simulate(const Schedule& schedule, const StageCost& cost);

}  // namespace chassis
