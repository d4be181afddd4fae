// Decides which lines of an existing metrics.jsonl, or samples.jsonl, a run keeps. Accepts any content, and uses memory
// that does not depend on the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "host/base/file.hpp"

namespace chassis {

// A line is the program's own if it is a JSON object with the keys of a step, an evaluation or a sample.
struct MetricsScan {
  uint64_t kept_bytes = 0;    // up to the first own line of a later step
  bool kept_ends_line = true; // false: the last kept line lacks its line break
  uint64_t num_kept = 0;      // own lines that are kept
  uint64_t num_dropped = 0;   // own lines after them
  bool drops_cut_short = false;  // drops a last line that a kill cut short
  int64_t first_dropped_step = 0, last_dropped_step = 0;
  int64_t last_step = 0;  // largest step of all own lines
  uint64_t num_foreign_kept = 0;
  uint64_t num_foreign_dropped = 0;
  uint64_t first_foreign_line = 0;  // counted from 1; 0: no such line

  bool holds_own() const { return num_kept + num_dropped > 0; }
  bool holds_foreign() const { return num_foreign_kept + num_foreign_dropped > 0; }
};

// Reads up to num_bytes at an offset; returns 0 at the end.
using ReadSome = std::function<size_t(void* data, size_t num_bytes, uint64_t offset)>;

// Keeps the lines up to the first own line of a step after `last_step`. Throws only what `read` throws.
MetricsScan scan_metrics(const ReadSome& read, int64_t last_step);
// The same for a file; all zero if it does not exist. Throws a storage error if it is not a regular file (a link, a
// FIFO), or if it has lines but none of this program. Writes nothing.
MetricsScan scan_metrics_file(const std::string& path, int64_t last_step);

// The file, and the offset after the kept lines.
struct MetricsFile {
  File file;
  uint64_t offset = 0;
};
// Drops the lines of steps after `last_step`, and logs that. If foreign lines would be dropped too, or `is_own` is
// false, keeps the earlier file under another name and counts a warning. Unless `has_every_step`, steps may be missing.
MetricsFile open_metrics_file(const std::string& path, int64_t last_step, bool is_own = true,
                              bool has_every_step = true);

}  // namespace chassis
