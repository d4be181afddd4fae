// SIGINT, SIGTERM and SIGHUP ask the run to stop: the step in progress is finished and saved. A second SIGINT ends at
// once; a SIGHUP that was ignored before, as nohup does, stays ignored.
// SIGUSR1 asks for a checkpoint behind the step in progress. What comes between the backward passes of two steps is
// heard in the second.
#pragma once

#include <cstdint>

namespace chassis {

// While it lives, the signals are caught. One at a time.
class RunSignals {
 public:
  // `answering`: on stderr, at once; a plugin that is waited for is then told by CallWatch.
  explicit RunSignals(bool answering = true);
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  // The last step whose checkpoint can be used, for the answer.
  void note_saved(int64_t step);
  bool stop_requested() const;
  // Once for each request.
  bool take_save_request();
  // "SIGTERM"; empty if none came.
  const char* name() const;
};

}  // namespace chassis
