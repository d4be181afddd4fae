// Before the first step: what takes long is said, and a signal to stop is obeyed, whatever is being done.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "host/base/ticker.hpp"

namespace chassis {

// While it lives. Says once what is being done, if that takes longer than `patience`.
class SlowPhase {
 public:
  explicit SlowPhase(std::string what, std::chrono::milliseconds patience = std::chrono::seconds(3));

 private:
  Ticker ticker_;
};

// While it lives, there is nothing to save. Once `requested` says so, whoever asks for it has a moment to end in order;
// then the process ends with the exit code of a run that was stopped, as if it were killed: what is written before the
// first step bears that.
class StopBeforeSteps {
 public:
  StopBeforeSteps(std::function<bool()> requested, bool speaks);

 private:
  Ticker ticker_;
};

}  // namespace chassis
