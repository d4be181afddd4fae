// The best result of one evaluation set so far, which decides which checkpoint is kept and when a run stops early.
#pragma once

#include <cstdint>
#include <string>

#include "host/base/json.hpp"

namespace chassis {

// The number that an evaluation set gives: its loss, the score of answers, or a metric of the objective.
struct Measure {
  std::string name = "loss";
  bool higher_is_better = false;
  bool operator==(const Measure&) const = default;
};

class BestEvaluation {
 public:
  // `set` is eval.keep_best. patience: evaluations in a row without an improvement that end the run; 0: no limit.
  BestEvaluation(std::string set, Measure measure, int64_t patience)
      : set_(std::move(set)), measure_(measure), patience_(patience) {}

  const std::string& set() const { return set_; }
  // Returns whether the value is the best so far, which NaN never is.
  bool add(int64_t step, double value);
  bool is_out_of_patience() const { return patience_ > 0 && num_not_better_ >= patience_; }

  // -1: no evaluation yet.
  int64_t step() const { return step_; }
  double value() const { return value_; }
  // "loss 1.2345 on "eval" at step 400"
  std::string text() const;
  // Says why the run ends before its last step.
  std::string end_text() const;

  // For the state in a checkpoint. restore() ignores the result of another set, and of a set of this name that gave
  // another number, with a counted warning.
  Json to_json() const;
  void restore(const Json& saved, const std::string& where);
  // Called if the checkpoint is gone: the next evaluation then counts as the best.
  void forget() { step_ = -1, num_not_better_ = 0; }

 private:
  std::string set_;
  Measure measure_;
  int64_t patience_;
  int64_t step_ = -1;
  double value_ = 0;
  int64_t num_not_better_ = 0;  // evaluations since step_
};

}  // namespace chassis
