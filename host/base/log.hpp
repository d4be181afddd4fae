// The log: console lines on stderr, the same lines with times in files, and counted warnings.
// Rationale: this is the only process-wide state; all other code is passed what it needs.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

// [any] for all functions here.
void set_level(Level level);
bool enabled(Level level);
// Rank 0 shows all lines on the console; other ranks show only warnings and errors, marked "[rank 2]".
void set_rank(int rank);
// Also writes to this file from now on, with times, at level debug. Throws a storage error if it cannot be opened.
void add_file(const std::string& path);
// Closes the files that add_file() opened.
void close_files();
void flush();
// A line at the end of the terminal: erased before a log line and drawn again after it. "" erases it. Only rank 0 of a
// run shows one, and only if stderr is a terminal that can erase a line.
void set_status(std::string_view text);
bool shows_status();
void write(Level level, std::string_view text);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

// Reports that something was ignored, changed or dropped. The first occurrence of a key is logged as a warning; all are
// counted for the summary at the end of the run. `times` adds several occurrences at once.
void counted_warning(std::string key, std::string text, uint64_t times = 1);
// In order of first occurrence.
std::vector<std::pair<std::string, uint64_t>> counted_warnings();
// The number of different keys so far.
size_t num_counted_warnings();
void reset_counted_warnings();

}  // namespace chassis::log

namespace chassis {
using log::counted_warning;
using log::counted_warnings;
using log::num_counted_warnings;
}  // namespace chassis
