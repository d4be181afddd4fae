// One training step. The trainer runs it, the planner rehearses it on tensors without memory, and tests run it to
// count what it sends. Data, clocks and policies belong to its caller.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/execute/executor.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/ranks.hpp"
#include "host/state/schedule.hpp"

namespace chassis {

// Per-rank requests, reduced across ranks once per step.
struct StepRequests {
  bool stop = false;  // after this step
  bool save = false;  // after this step
  bool swap = false;  // look after this step for a request to swap: see host/train/live_swap.hpp
  bool ready = true;  // to continue the save in progress
};

// The objects that a step uses; they outlive it. On a meta device the step is a rehearsal: it allocates, frees and
// sends as a real step does, and computes nothing.
struct StepParts {
  Executor& executor;
  ParameterTable& parameters;
  OptimizerDriver& optimizer;
  Ranks ranks;
  Device device;
};

// Returns the fields of one micro-batch.
using FieldSource = std::function<Fields(int microbatch)>;

enum class StepPhase {
  kForward,    // one micro-batch
  kBackward,   // one micro-batch
  kReduction,  // all gradients
  kUpdate,     // the optimizer's step; left out if the step is not applied
  kEnd,
};
// Called after each phase; `microbatch` is set for kForward and kBackward.
using StepObserver = std::function<void(StepPhase, int microbatch)>;

// The loss and the gradients that an objective makes of the outputs of a micro-batch, on a rank that has the last
// stage.
struct ObjectiveValue {
  double loss = 0.0;       // this micro-batch's part of the loss, already divided by the counts of the global batch
  StreamValues gradients;  // of the outputs
};
using ObjectiveSource = std::function<ObjectiveValue(int microbatch, const StreamValues& outputs)>;

struct StepInputs {
  int64_t step = 1;
  std::vector<Work> schedule;  // this rank's work
  FieldSource fields;
  std::function<RandomBits(int microbatch)> random;  // for this rank's micro-batches; NULL: all zero
  double loss_scale = 1.0;                           // 1 ÷ trained tokens of the global batch; 1 with an objective
  ObjectiveSource objective;                         // NULL: the program's output "loss" is minimised
  // This rank's parts of sums over the step, for metrics; called once, after its backward. NULL: none.
  std::function<std::vector<double>()> sums;
  double lr = 0.0;
  double max_grad_norm = 0.0;              // 0: no clipping
  bool updates = true;                     // false: parameters and states stay as they are
  std::function<StepRequests()> requests;  // this rank's requests; called once, after its backward
  std::function<void()> before_update;     // called before parameters and states change
  StepObserver observer;
};

// The same on all ranks.
struct StepResult {
  double loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  StepRequests requests;   // stop, save or swap if any rank requests it; ready if all ranks are
  std::vector<double> sums;  // over all ranks
  bool applied = false;    // false: loss or gradients are not finite, and parameters are unchanged
};

// [step][all-ranks]
StepResult run_step(const StepParts& parts, const StepInputs& inputs);

}  // namespace chassis
