// Hands each record to all sinks, and keeps a failure of the storage.
#include "host/train/run_sinks.hpp"

#include <string>

#include "host/base/log.hpp"

namespace chassis {

void RunSinks::write(int64_t step, const std::function<void(MetricsSink&)>& hand_on) {
  std::erase_if(sinks_, [&](const auto& sink) {
    try {
      hand_on(*sink);
      return false;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kStorage) throw;
      log::warn("{}; the run saves and stops", error.message());
      failure_ = Error(ExitCode::kStorage, "metrics.jsonl lacks its lines from step " + std::to_string(step) + " on");
      failure_->caused_by(error).hint("free some space; the same command then continues the run");
      return true;
    }
  });
}

void RunSinks::finish(RunOutcome outcome, int64_t step) {
  for (const auto& sink : sinks_) sink->finish(outcome, step);
}

}  // namespace chassis
