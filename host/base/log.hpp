// What the program tells people: console lines on stderr, the same with times in log files, and counted warnings.
// Rationale: this is the one piece of process-wide state; every other part is passed what it needs.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis::log {

enum class Level { kDebug, kInfo, kWarn, kError, kOff };

// All of these may be called from any thread.
void set_level(Level level);
bool enabled(Level level);
// This process is one of several: the first one speaks, of the others only warnings and errors are shown, marked
// "[rank 2]".
void set_rank(int rank);
// Also writes to this file from now on, with times, at level debug. Throws a storage error if it can not be opened.
void add_file(const std::string& path);
// Closes what add_file opened.
void close_files();
void flush();
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

// Something was ignored, changed or dropped: the first of its key is logged as a warning, all are counted for the
// summary at the end of the run. `times` adds several occurrences at once.
void counted_warning(std::string key, std::string text, uint64_t times = 1);
// In order of first occurrence.
std::vector<std::pair<std::string, uint64_t>> counted_warnings();
void reset_counted_warnings();

}  // namespace chassis::log

namespace chassis {
using log::counted_warning;
using log::counted_warnings;
}  // namespace chassis
