// Starts, ends and writes the trace.
#include "host/train/step_trace.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/train/report_file.hpp"

namespace chassis {

StepTrace::StepTrace(const std::vector<int64_t>& steps, RunState& state, World& world, const std::string& run_directory)
    : first_(steps[0]), last_(steps[1]), state_(state), world_(world), folder_(run_directory + "/trace") {
  // Clocks of machines differ by the error of their time service. Counted from the earliest clock, no time is negative.
  int64_t origin = Trace::realtime_ns();
  for (const std::string& now : world.exchange("start of the trace", std::to_string(origin)))
    origin = std::min<int64_t>(origin, std::stoll(now));
  trace_ = std::make_unique<Trace>(world.rank(), origin);
  state_.communicator->set_trace(trace_.get());
}

StepTrace::~StepTrace() { state_.communicator->set_trace(nullptr); }

void StepTrace::start(int64_t step) const {
  if (step >= last_ && world_.rank() == 0)
    counted_warning("no trace",
                    fmt::format("log.trace = [{}, {}], and the run continues after step {}", first_, last_, step));
}

void StepTrace::begin_step(int64_t step) {
  if (step < first_ || step > last_) return;
  if (!trace_->on()) first_begun_ = step;
  last_begun_ = step;
  trace_->turn(true);
}

void StepTrace::end_step(int64_t step) {
  if (step >= last_) finish();
}

void StepTrace::finish() {
  trace_->turn(false);
  if (is_written_ || trace_->empty()) return;
  is_written_ = true;
  try {
    write();
  } catch (const std::exception& error) {
    counted_warning("trace not written", std::string("the trace could not be written: ") + error.what());
  }
}

void StepTrace::write() {
  const int rank = world_.rank();
  const std::string path = write_report(folder_, rank, trace_->json());
  if (const uint64_t dropped = trace_->num_dropped(); dropped > 0)
    counted_warning("spans that the trace has no room for",
                    fmt::format("{} lacks its last {} spans; trace fewer steps", path, dropped), dropped);
  if (rank == 0)
    log::info("trace of steps {} to {}: {}/rank-*.json; open them in https://ui.perfetto.dev", first_begun_,
              last_begun_, folder_);
}

}  // namespace chassis
