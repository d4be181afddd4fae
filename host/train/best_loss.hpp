// The lowest loss of one evaluation set so far, which decides which checkpoint is kept and when a run stops early.
#pragma once

#include <cstdint>
#include <string>

#include "host/base/json.hpp"

namespace chassis {

class BestLoss {
 public:
  // `set` is eval.keep_best. patience: evaluations in a row without a lower loss that end the run; 0: no limit.
  BestLoss(std::string set, int64_t patience) : set_(std::move(set)), patience_(patience) {}

  const std::string& set() const { return set_; }
  // Returns whether the loss is the lowest so far, which NaN never is.
  bool add(int64_t step, double loss);
  bool is_out_of_patience() const { return patience_ > 0 && num_not_lower_ >= patience_; }

  // -1: no evaluation yet.
  int64_t step() const { return step_; }
  double loss() const { return loss_; }
  // "loss 1.2345 on "eval" at step 400"
  std::string text() const;
  // Says why the run ends before its last step.
  std::string end_text() const;

  // For the state in a checkpoint. restore() ignores the loss of another set, with a counted warning.
  Json to_json() const;
  void restore(const Json& saved, const std::string& where);
  // Called if the checkpoint is gone: the next evaluation then counts as the best.
  void forget() { step_ = -1, num_not_lower_ = 0; }

 private:
  std::string set_;
  int64_t patience_;
  int64_t step_ = -1;
  double loss_ = 0;
  int64_t num_not_lower_ = 0;  // evaluations since step_
};

}  // namespace chassis
