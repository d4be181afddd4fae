// The steps of a run, with what is due between them: comparison of replicas, evaluations, samples and saves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "host/session/replicas.hpp"
#include "host/session/session.hpp"
#include "host/train/live_swap.hpp"
#include "host/train/prepared_run.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

// The facts about the steps that the end of a run uses.
struct StepsTaken {
  bool was_stopped = false;  // by a request, before the last step
  bool was_evaluated = false;
  std::optional<StepRecord> last;  // unset if no step was left
};

class RunLoop {
 public:
  // All outlive the loop.
  RunLoop(Session& session, ReplicaCheck& replicas, PreparedRun& run, LiveSwap& swaps)
      : session_(session), replicas_(replicas), run_(run), swaps_(swaps) {}

  // [step][all-ranks] Takes steps until the last one, until a request to stop, or until eval.patience ends. A
  // checkpoint of the last step may still be missing, or in progress.
  StepsTaken operator()();

 private:
  StepRecord take_step();
  // Does all that is due after a step.
  void follow_up(int64_t step);
  bool evaluation_is_due(int64_t step) const;
  void evaluate_all(int64_t step);
  // Each evaluates one set, and returns whether the result is the best one of eval.keep_best so far.
  bool evaluate_loss(size_t index, int64_t step);
  bool evaluate_answers(size_t index, int64_t step);
  bool improves_best(const std::string& set, int64_t step, double value);
  void save(const std::function<void()>& part);
  void log_memory();

  Session& session_;
  ReplicaCheck& replicas_;
  PreparedRun& run_;
  LiveSwap& swaps_;
  StepsTaken taken_;
  double save_ms_ = 0.0;  // since the last step
  bool memory_is_logged_ = false;
};

}  // namespace chassis
