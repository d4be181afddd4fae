// Implements log.hpp with spdlog: a console sink whose info lines have no prefix, and file sinks with times.
#include "host/base/log.hpp"

#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log_capture.hpp"
#include "host/base/printable.hpp"

namespace chassis::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

// The flag "%*": the rank if there are several, then "warning: " and the like; nothing for info lines.
class PrefixFlag : public spdlog::custom_flag_formatter {
 public:
  explicit PrefixFlag(std::string rank) : rank_(std::move(rank)) {}
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    out.append(rank_.data(), rank_.data() + rank_.size());
    std::string_view prefix;
    if (message.level == spdlog::level::debug) prefix = "debug: ";
    if (message.level == spdlog::level::warn) prefix = "warning: ";
    if (message.level == spdlog::level::err) prefix = "error: ";
    out.append(prefix.data(), prefix.data() + prefix.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PrefixFlag>(rank_); }

 private:
  std::string rank_;
};

std::unique_ptr<spdlog::formatter> console_formatter(std::string rank) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrefixFlag>('*', std::move(rank)).set_pattern("%^%*%$%v");
  return formatter;
}

// Appends whole lines to a file; refuses a link. If a line does not fit, removes what was written of it and throws.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : file_(File::open_or_create_own(path)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    // Looks up the end each time, since people truncate and rotate logs.
    const uint64_t begin = file_.size();
    try {
      file_.pwrite_exact(line.data(), line.size(), begin);
    } catch (const Error& cause) {
      if (file_.size() > begin) file_.truncate(begin);
      throw spdlog::spdlog_ex(cause.message());
    }
  }
  void flush_() override {}

  File file_;
};

constexpr size_t kMaxEarlyLines = 512;
constexpr char kLostLines[] = "lines that the log file did not take";

constexpr char kEraseLine[] = "\r\033[K";

bool erases_lines() {
  const char* const terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::sinks::stderr_color_sink_mt> console =
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  std::vector<std::shared_ptr<spdlog::sinks::sink>> files;
  std::vector<std::pair<std::string, uint64_t>> counted;
  // Lines logged before there was a file; the first file begins with them.
  std::vector<spdlog::details::log_msg_buffer> early;
  bool keeps_early = true;
  std::mutex console_mutex;  // guards the terminal and the status
  std::string status;
  bool is_first = true;  // rank 0

  State() {
    console->set_formatter(console_formatter(""));
    console->set_level(spdlog::level::info);
    const char* const no_color = std::getenv("NO_COLOR");  // no-color.org: set and not empty
    if (no_color != nullptr && *no_color != '\0') console->set_color_mode(spdlog::color_mode::never);
  }
};

// Never destroyed, so that threads and destructors may log until the process ends.
State& state() {
  static State* const instance = new State;
  return *instance;
}

// Adds to the count of a key; true if the key is new. The caller holds the mutex.
bool count(State& s, const std::string& key, uint64_t times) {
  for (auto& [known, number] : s.counted) {
    if (known != key) continue;
    number += times;
    return false;
  }
  s.counted.emplace_back(key, times);
  return true;
}

// The caller holds the mutex. Returns the reason when a line could not be written for the first time, otherwise "".
std::string write_to_files(State& s, const spdlog::details::log_msg& message) {
  std::string failure;
  for (auto& file : s.files) {
    // Rationale: a full disk must not end a run because of its log; the checkpoint reports it.
    try {
      file->log(message);
    } catch (const std::exception& cause) {
      if (count(s, kLostLines, 1)) failure = cause.what();
    }
  }
  return failure;
}

void write_to_console(State& s, Level level, const std::string& text) {
  const spdlog::details::log_msg message(spdlog::string_view_t(), to_spdlog(level), {text.data(), text.size()});
  if (!s.console->should_log(message.level)) return;
  std::lock_guard lock(s.console_mutex);
  // Other ranks do not know whether rank 0 shows a status on this terminal.
  if (!s.status.empty() || (!s.is_first && erases_lines())) std::fputs(kEraseLine, stderr);
  s.console->log(message);
  if (!s.status.empty()) std::fputs(s.status.c_str(), stderr);
  s.console->flush();
}

thread_local CapturedWarnings* capture = nullptr;

}  // namespace

CapturedWarnings::CapturedWarnings() : outer_(std::exchange(capture, this)) {}
CapturedWarnings::~CapturedWarnings() { capture = outer_; }

void set_level(Level level) { state().console->set_level(to_spdlog(level)); }

void set_rank(int rank) {
  if (rank == 0) return;
  set_status("");
  state().is_first = false;
  state().console->set_formatter(console_formatter("[rank " + std::to_string(rank) + "] "));
  state().console->set_level(spdlog::level::warn);
}

bool enabled(Level level) {
  State& s = state();
  if (s.console->should_log(to_spdlog(level))) return true;
  std::lock_guard lock(s.mutex);
  return !s.files.empty();
}

void add_file(const std::string& path) {
  auto sink = std::make_shared<FileSink>(path);
  sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.files.push_back(std::move(sink));
  for (const auto& message : s.early) write_to_files(s, message);
  s.early.clear();
  s.keeps_early = false;
}

void close_files() {
  flush();
  std::lock_guard lock(state().mutex);
  state().files.clear();
}

void flush() {
  State& s = state();
  s.console->flush();
  std::lock_guard lock(s.mutex);
  for (auto& file : s.files) file->flush();
}

bool shows_status() { return state().is_first && erases_lines(); }

void set_status(std::string_view text) {
  State& s = state();
  if (!shows_status()) return;
  std::lock_guard lock(s.console_mutex);
  if (s.status.empty() && text.empty()) return;
  s.status = text;
  std::fputs((kEraseLine + s.status).c_str(), stderr);
  std::fflush(stderr);
}

void write(Level level, std::string_view raw) {
  State& s = state();
  const std::string text = printable_message(raw);
  write_to_console(s, level, text);
  const spdlog::details::log_msg message(spdlog::string_view_t(), to_spdlog(level), {text.data(), text.size()});
  std::string failure;
  {
    std::lock_guard lock(s.mutex);
    if (s.keeps_early && level != Level::kDebug && s.early.size() < kMaxEarlyLines) s.early.emplace_back(message);
    failure = write_to_files(s, message);
  }
  if (!failure.empty()) write_to_console(s, Level::kWarn, failure + "; lines missing from the file are counted");
}

void counted_warning(std::string key, std::string text, uint64_t times) {
  if (times == 0) return;
  if (capture != nullptr) return capture->add(std::move(key), std::move(text));
  {
    std::lock_guard lock(state().mutex);
    if (!count(state(), key, times)) return;
  }
  write(Level::kWarn, text);
}

std::vector<std::pair<std::string, uint64_t>> counted_warnings() {
  std::lock_guard lock(state().mutex);
  return state().counted;
}

size_t num_counted_warnings() {
  std::lock_guard lock(state().mutex);
  return state().counted.size();
}

void reset_counted_warnings() {
  std::lock_guard lock(state().mutex);
  state().counted.clear();
}

}  // namespace chassis::log
