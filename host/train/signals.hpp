// SIGINT and SIGTERM ask the run to stop: the step in progress is finished and saved. A second SIGINT ends at once.
#pragma once

namespace chassis {

// While it lives, the signals are caught. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  // "SIGTERM"; empty if none came.
  const char* name() const;
};

}  // namespace chassis
