// The training loop and the evaluation loop. They know no plugin by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/choices.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/plugin/process_settings.hpp"
#include "host/service/trace.hpp"
#include "host/session/lr_schedule.hpp"
#include "host/session/objective_step.hpp"
#include "host/session/run_state.hpp"
#include "host/session/step.hpp"
#include "host/train/router_metrics.hpp"
#include "host/train/sinks.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

struct TrainerOptions {
  StepShape shape;
  LearningRateSchedule schedule;
  double max_grad_norm = 1.0;  // 0: no clipping
  NonFinite nonfinite = NonFinite::kStop;
  // The run stops after this many skipped steps in a row, also with kSkip. 0: no limit.
  int64_t max_skipped_steps = 0;
  int64_t max_steps = 0;
  uint64_t seed = 0;                       // for random bits in ops
  std::function<StepRequests()> requests;  // as in StepInputs
  std::function<void()> before_update;     // as in StepInputs
  int64_t router_every_steps = 10;         // steps between metrics of routers
  ObjectiveStep* objective = nullptr;      // NULL: the cross entropy of tokens. Outlives the trainer
  Trace* trace = nullptr;
  // Compared after each step; nullopt: nothing is.
  std::optional<ProcessSettings> process_settings = {};
};

// Saved with the tensors, and restored on resume.
struct TrainerState {
  int64_t step = 0;  // the last completed step
  uint64_t tokens = 0;
  uint64_t trained_tokens = 0;
  uint64_t skipped_steps = 0;
};
// Throws a config error if a count is missing, negative, or larger than the one that it is a part of.
TrainerState trainer_state_from_json(const Json& saved, const std::string& where);

class Trainer {
 public:
  // `run` and `data` outlive the trainer. Between two steps, another state may be assigned to `run`.
  Trainer(RunState& run, TrainData& data, TrainerOptions options);

  // [step] One optimizer step over a global batch. If loss or gradients are not finite, the parameters do not change;
  // throws a numeric error if the policy is kStop, after max_skipped_steps, or if parameters are not finite either.
  // Throws a plugin error if a plugin has changed the settings of the process.
  StepRecord step();
  // The reduced requests of all ranks in the last step.
  const StepRequests& requests() const { return requests_; }

  TrainerState& state() { return state_; }
  const TrainerState& state() const { return state_; }
  const TrainerOptions& options() const { return options_; }
  // Between two steps, after another state was assigned.
  void set_options(TrainerOptions options);
  void set_max_steps(int64_t steps) { options_.max_steps = options_.schedule.max_steps = steps; }

 private:
  // [all-ranks] Counts a skipped step, or throws.
  void refuse_step(StepRecord& record);

  RunState& run_;
  TrainData& data_;
  TrainerOptions options_;
  TrainerState state_;
  int64_t skipped_in_a_row_ = 0;
  int64_t last_applied_ = 0;  // the last step that this trainer applied; 0: none
  StepRequests requests_;
  RouterMetrics routers_;
};

// [all-ranks] The mean loss over a whole set, or loss and metrics of an objective unless it is NULL. Batch i runs on
// data-parallel rank i modulo their number.
EvalRecord evaluate(Session& session, ObjectiveStep* objective, EvalData& data);

}  // namespace chassis
