// The trace of a run: when it records, and the file of each rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/launch/world.hpp"
#include "host/service/trace.hpp"
#include "host/session/run_state.hpp"

namespace chassis {

class StepTrace {
 public:
  // [all-ranks] `steps`: the first and the last one. The ranks agree on time 0. The communicator of `state`, which
  // outlives the trace, records into it from now on; the executor gets the recorder when it is made.
  StepTrace(const std::vector<int64_t>& steps, RunState& state, World& world, const std::string& run_directory);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  Trace* recorder() { return trace_.get(); }
  // After another state was assigned: its communicator records.
  void follow() { state_.communicator->set_trace(trace_.get()); }
  // Counts a warning if the run starts after the last step to trace.
  void start(int64_t step) const;
  void begin_step(int64_t step);
  // Writes the file after the last step to trace.
  void end_step(int64_t step);
  // Writes the steps traced so far, if the run ends earlier. A failure is a counted warning.
  void finish();

 private:
  void write();

  const int64_t first_, last_;
  int64_t first_begun_ = 0, last_begun_ = 0;  // a run may begin after the first step, and end before the last one
  RunState& state_;
  World& world_;
  const std::string folder_;
  std::unique_ptr<Trace> trace_;
  bool is_written_ = false;
};

}  // namespace chassis
