// One step of training, spelled out once: the trainer takes it, the planner rehearses it on tensors without memory, and
// tests take it to see what it sends. It knows neither data, clocks nor policies; its caller does.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "host/program/executor.hpp"
#include "host/program/parameters.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/ranks.hpp"

namespace chassis {

// One entry of a schedule of micro-batches. The default is forward and backward of each in turn; pipelines are other
// data.
struct Work {
  enum class Kind { kForward, kBackward } kind;
  int microbatch;
};
std::vector<Work> sequential_schedule(int64_t num_microbatches);

// What a rank has to say to the others beside its part of a step.
struct Wishes {
  bool stop = false;  // behind this step
  bool save = false;  // likewise
  bool ready = true;  // to go on with the save in progress
};

// What a step works on. All of it outlives the step. On a meta device it is a rehearsal: memory is taken and given back
// as in the step itself, the same is sent, and nothing is computed.
struct StepParts {
  Executor& executor;
  ParameterTable& parameters;
  OptimizerDriver& optimizer;
  Ranks ranks;
  Device device;
};

// Where micro-batches come from: the fields of one.
using FieldSource = std::function<Fields(int microbatch)>;

enum class StepPhase {
  kForward,    // of one micro-batch
  kBackward,   // likewise
  kReduction,  // gradients are whole
  kUpdate,     // the optimizer has stepped, if it may
  kEnd,
};
// Told when a phase is over; kForward and kBackward with their micro-batch.
using StepObserver = std::function<void(StepPhase, int microbatch)>;

struct StepInputs {
  int64_t step = 1;
  std::vector<Work> schedule;
  FieldSource fields;
  double loss_scale = 1.0;  // 1 ÷ trained tokens of the global batch
  double lr = 0.0;
  double max_grad_norm = 0.0;           // 0: never clipped
  std::function<Wishes()> wishes;       // of this rank; asked once, after its backward
  std::function<void()> before_update;  // called when parameters and states are about to change
  StepObserver observer;
};

// The same on all ranks.
struct StepResult {
  double loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  Wishes wishes;           // to stop or save if any rank wished it, ready if all were
  bool applied = false;    // else loss or gradients are not finite, and parameters are as before
};

// [step][all-ranks]
StepResult run_step(const StepParts& parts, const StepInputs& inputs);

}  // namespace chassis
