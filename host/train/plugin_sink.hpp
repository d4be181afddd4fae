// Hands the metrics of a run to a plugin of kind sink, on a thread of its own, so that the plugin may block.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "host/plugin/instance.hpp"
#include "host/train/sinks.hpp"

namespace chassis {

// The facts that a sink gets at the start.
struct SinkStart {
  std::string run_name;
  std::string output_dir;
  std::string config;  // the resolved configuration, one JSON object
  int64_t first_step = 0;
  int64_t max_steps = 0;
};

struct SinkLimits {
  size_t queued = 1024;                                        // records; further ones are dropped while so many wait
  std::chrono::milliseconds finish = std::chrono::seconds(5);  // time for the records that are still queued at the end
};

// No failure of the plugin affects the run: errors, dropped records, and a sink that does not end are counted warnings.
// `instance` is active.
std::unique_ptr<MetricsSink> make_plugin_sink(std::unique_ptr<Instance> instance, SinkStart start,
                                              SinkLimits limits = {});

}  // namespace chassis
