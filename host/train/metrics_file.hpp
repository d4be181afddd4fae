// metrics.jsonl as a run finds it: which of its lines stay. Whatever the file holds, reading it ends in an answer, in
// memory that does not depend on its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "host/base/file.hpp"

namespace chassis {

// A line is the program's own if it is a JSON object with the keys of a step or of an evaluation.
struct MetricsScan {
  uint64_t kept_bytes = 0;    // up to the first own line of a later step
  bool kept_ends_line = true; // false: the last kept line lacks its line break
  uint64_t num_kept = 0;      // own lines that stay
  uint64_t num_dropped = 0;   // own lines behind them, and one that a kill cut short
  int64_t first_dropped_step = 0, last_dropped_step = 0;
  int64_t last_step = 0;  // of all own lines
  uint64_t num_foreign_kept = 0;
  uint64_t num_foreign_dropped = 0;
  uint64_t first_foreign_line = 0;  // counted from 1; 0: there is none

  bool holds_own() const { return num_kept + num_dropped > 0; }
  bool holds_foreign() const { return num_foreign_kept + num_foreign_dropped > 0; }
};

// Reads up to num_bytes at an offset; 0 at the end.
using ReadSome = std::function<size_t(void* data, size_t num_bytes, uint64_t offset)>;

// Lines of steps up to `last_step` stay. Throws what `read` throws, nothing else.
MetricsScan scan_metrics(const ReadSome& read, int64_t last_step);
// The same of a file; all zero if there is none. Throws a storage error, before anything is written, for what is not a
// regular file of its own (a link, a FIFO) and for a file that holds lines, none of them the program's.
MetricsScan scan_metrics_file(const std::string& path, int64_t last_step);

// Open for the line after those that stay.
struct MetricsFile {
  File file;
  uint64_t offset = 0;
};
// Drops the lines of later steps. Where foreign lines would go with them, or `is_own` is false, the file as it was is
// kept beside it under another name; both are told.
MetricsFile open_metrics_file(const std::string& path, int64_t last_step, bool is_own = true);

}  // namespace chassis
