// Before the first step: logs phases that take long, and ends the process after a signal to stop.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "host/base/ticker.hpp"

namespace chassis {

// Logs `what` once if this object lives longer than `patience`.
class SlowPhase {
 public:
  explicit SlowPhase(std::string what, std::chrono::milliseconds patience = std::chrono::seconds(3));

 private:
  Ticker ticker_;
};

// Exists while there is nothing to save. After `requested` returns true, the run has 0.7 s to end normally; then this
// ends the process with the exit code of a stopped run. Files written before the first step tolerate that.
class StopBeforeSteps {
 public:
  StopBeforeSteps(std::function<bool()> requested, bool is_logging);

 private:
  Ticker ticker_;
};

}  // namespace chassis
