// Writes the events of a run other than its steps, for `chassis report` and `chassis watch`: starts, checkpoints,
// warnings and ends, in events.jsonl.
#pragma once

#include <memory>
#include <string>

#include "host/train/sinks.hpp"

namespace chassis {

// Appends to `path`, which RunDirectory has checked, and writes a start event at once. A line that cannot be written is
// left out, and counted as a warning.
std::unique_ptr<MetricsSink> make_events_sink(const std::string& path, int64_t first_step);

}  // namespace chassis
