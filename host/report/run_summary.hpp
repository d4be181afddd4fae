// A run in a screen of text, and as JSON.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/report/run_reader.hpp"

namespace chassis {

// Returns "-" if the value is not finite.
std::string metric_text(std::string_view name, double value);

// Tokens per second over the last 20 buckets; NaN if unknown.
double recent_tokens_per_second(const History& history);

struct SummaryStyle {
  size_t width = 80;  // width of the terminal, in characters
  bool unicode = true;
};
std::string summary_text(const RunReader& run, SummaryStyle style);
// Schema "chassis.report/1", for one or more runs.
Json summary_json(const std::vector<const RunReader*>& runs);

// The parts of a step in milliseconds, the mean of the last buckets: data, forward, backward, optimizer, the rest, and
// saves. Communication that a rank waits for is inside forward and backward.
std::vector<std::pair<std::string, double>> step_parts(const History& history, size_t num_buckets);

// "llama", "723k parameters", the device, mesh, strategies and dtype, as far as the run has recorded them.
std::vector<std::string> facts_of(const RunReader& run);

struct ConfigValue {
  std::string key, value, origin;  // origin: "run.toml:12", "default of adamw"
};
// Empty if the run has recorded none.
std::vector<ConfigValue> config_of(const RunReader& run);
struct ConfigDifference {
  std::string key;
  std::vector<std::string> values;  // by run; "" where it has no such key
};
// Keys whose values differ between any two runs, without those that name the run or its directory.
std::vector<ConfigDifference> config_differences(const std::vector<const RunReader*>& runs);

// The index of the rank whose own work exceeds the median by more than 10 % of its step; -1 if there is none. Its own
// work is its step without the time in which it waits for others.
int straggler(const std::vector<RankStatus>& ranks);

struct PostMortem {
  std::string file, kind, error;  // "post-mortem/rank-1.json", "out_of_memory"
};
// The post-mortems that the run has left, at most 64.
std::vector<PostMortem> post_mortems_of(const RunReader& run);

// The checkpoints that the run has saved, and those in its directory, oldest step first.
struct CheckpointLine {
  int64_t step = 0;
  double time = 0.0;  // 0: unknown
  uint64_t num_bytes = 0;
  double seconds = 0.0, stall_seconds = 0.0;  // 0: unknown
  bool resumable = false;
  std::string check;  // "whole", "removed", or what is wrong with it
};
std::vector<CheckpointLine> checkpoint_lines(const RunReader& run);

}  // namespace chassis
