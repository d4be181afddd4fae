// The training loop. It knows no plugin by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/session/schedule.hpp"
#include "host/session/step.hpp"
#include "host/train/sinks.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

enum class NonFinite { kStop, kSkip };

struct TrainerOptions {
  StepShape shape;
  LearningRateSchedule schedule;
  double max_grad_norm = 1.0;  // 0: never clipped
  NonFinite nonfinite = NonFinite::kStop;
  // Steps in a row that may be skipped; then the run stops all the same. 0: any number.
  int64_t max_skipped_steps = 0;
  int64_t max_steps = 0;
  std::function<Wishes()> wishes;       // as StepInputs
  std::function<void()> before_update;  // likewise
};

// What is to be saved beside tensors, and comes back on resume.
struct TrainerState {
  int64_t step = 0;  // done
  uint64_t tokens = 0;
  uint64_t trained_tokens = 0;
  uint64_t skipped_steps = 0;
};

class Trainer {
 public:
  // All must outlive it.
  Trainer(const StepParts& parts, TrainData& data, TrainerOptions options);

  // [step] One optimizer step over a global batch. Throws a numeric error if loss or gradients are not finite and the
  // policy is to stop, or no later step could be better; parameters are then as before the step.
  StepRecord step();
  // Of all ranks in the last step.
  const Wishes& wishes() const { return wishes_; }

  TrainerState& state() { return state_; }
  const TrainerOptions& options() const { return options_; }
  void set_max_steps(int64_t steps) { options_.max_steps = options_.schedule.max_steps = steps; }

 private:
  // [all-ranks] Counts it, or throws.
  void refuse_step(StepRecord& record);

  const StepParts parts_;
  TrainData& data_;
  TrainerOptions options_;
  std::vector<Work> schedule_;
  TrainerState state_;
  int64_t skipped_in_a_row_ = 0;
  int64_t last_applied_ = 0;  // the last step that this trainer applied; 0: none
  Wishes wishes_;
};

// [all-ranks] The mean loss over a whole set; batch i is rank i's, modulo the number of data-parallel ranks.
EvalRecord evaluate(Executor& executor, EvalData& data, int64_t micro_batch_size, int64_t max_batches, Ranks ranks,
                    Device device);

}  // namespace chassis
