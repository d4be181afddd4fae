// The sinks of a run, as one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "host/base/error.hpp"
#include "host/train/sinks.hpp"

namespace chassis {

class RunSinks {
 public:
  void add(std::unique_ptr<MetricsSink> sink) { sinks_.push_back(std::move(sink)); }

  // [step] Hands a record to every sink. A sink that throws a storage error is left out from then on, and the error
  // becomes failure(). `step` is the last completed one.
  void write(int64_t step, const std::function<void(MetricsSink&)>& hand_on);
  // Called before the summary, which includes what the sinks dropped.
  void finish(RunOutcome outcome, int64_t step);

  // Set if metrics could not be written. A checkpoint may still fit on the disk: the run saves and stops after the next
  // step, and then fails with this error.
  const std::optional<Error>& failure() const { return failure_; }

 private:
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  std::optional<Error> failure_;
};

}  // namespace chassis
