// The end of a run: the last checkpoint, the exported model, and the lines that say how the run went.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/session/session.hpp"
#include "host/train/loop.hpp"
#include "host/train/prepared_run.hpp"
#include "host/train/signals.hpp"

namespace chassis {

class RunEnding {
 public:
  // Made before the first step, from which it counts time, tokens and steps. All outlive it. `plugin_path` is the one
  // of the command, for the commands that it suggests.
  RunEnding(Session& session, const RunSignals& signals, const std::vector<std::string>& plugin_path, PreparedRun& run);

  // [step][all-ranks] Saves the last step, exports it unless the run was stopped, and logs the summary. Throws if
  // metrics or the last step could not be written.
  void finish(const StepsTaken& taken);
  // [step] Ends the outputs of a run whose steps, or whose finish(), failed, and logs a summary.
  void fail(const Error& error);

 private:
  void count_nonfinite(const StepsTaken& taken, bool exports);
  // `outcome` begins the first line: "done".
  void log_totals(std::string_view outcome);
  void log_best(bool stopped);
  void log_hint(bool stopped);
  void finish_outputs(RunOutcome outcome);

  Session& session_;
  const RunSignals& signals_;
  const std::vector<std::string>& plugin_path_;
  PreparedRun& run_;
  const std::chrono::steady_clock::time_point start_;
  const uint64_t first_tokens_;
  const int64_t first_step_;
};

}  // namespace chassis
