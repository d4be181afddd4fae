// What happens to a run beside its steps, for `chassis report` and `chassis watch`: starts, checkpoints, warnings and
// ends in events.jsonl, and what the run is in report.json.
#pragma once

#include <memory>
#include <string>

#include "host/train/sinks.hpp"

namespace chassis {

// Appends to `path`, which RunDirectory has checked; a start follows at once. A line that cannot be written is left
// out, and counted as a warning.
std::unique_ptr<MetricsSink> make_events_sink(const std::string& path, int64_t first_step);

}  // namespace chassis
