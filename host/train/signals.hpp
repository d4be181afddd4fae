// SIGINT, SIGTERM, SIGQUIT and SIGHUP ask the run to stop: the step in progress is finished and saved. A later SIGINT
// ends the process at once; a SIGHUP that was ignored before, as under nohup, stays ignored. SIGUSR1 asks for a
// checkpoint after the step in progress. A signal that arrives after the backward pass of a step takes effect after the
// next step. SIGUSR1 is blocked from the start of the program until a run catches it, so that an early one is not lost.
#pragma once

#include <cstdint>

namespace chassis {

// Catches the signals during its lifetime. Only one may exist at a time.
class RunSignals {
 public:
  // `answering`: replies on stderr at once; CallWatch then reports a plugin call that does not return.
  explicit RunSignals(bool answering = true);
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  // The last step with a usable checkpoint, for the reply.
  void note_saved(int64_t step);
  // Called just before the requests of `step` are read: from now on, a signal takes effect after the next step, or, if
  // this is the last one, changes nothing. For the reply.
  void note_asked(int64_t step, bool is_last);
  bool stop_requested() const;
  // True once for each request.
  bool take_save_request();
  // "SIGTERM"; empty if no signal arrived.
  const char* name() const;
};

}  // namespace chassis
