// Draws the progress bar on stderr, or logs its progress.
#include "host/base/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>
#include <vector>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLogPeriod{5};

int terminal_columns() {
  constexpr int kUsual = 80;
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text = value;
    for (const char* form : {"UTF-8", "utf-8", "UTF8", "utf8"})
      if (text.find(form) != std::string_view::npos) return true;
    return false;
  }
  return false;
}

size_t num_columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The end of the title stays: it is the name of a file.
std::string cut(const std::string& title, size_t columns, bool is_utf8) {
  const std::string dots = is_utf8 ? "…" : "...";
  if (num_columns(title) <= columns) return title;
  if (columns <= num_columns(dots)) return "";
  size_t left = num_columns(title) - (columns - num_columns(dots)), at = 0;
  while (left > 0) left -= (title[at++] & 0xC0) != 0x80 ? 1 : 0;
  while (at < title.size() && (title[at] & 0xC0) == 0x80) ++at;
  return dots + title.substr(at);
}

std::string bar_of(double part, size_t width, bool is_utf8) {
  const auto filled = static_cast<size_t>(part * static_cast<double>(width));
  std::string out = " [";
  for (size_t i = 0; i < width; ++i) out += i < filled ? (is_utf8 ? "█" : "#") : (is_utf8 ? "░" : ".");
  return out + "]";
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<uint64_t>(std::min(seconds, 1e9));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string rate_text(const ProgressFacts& facts) {
  return facts.bytes_per_second > 0 ? fmt::format(", {:.1f} MB/s", facts.bytes_per_second * 1e-6) : "";
}

std::string rows_text(const ProgressFacts& facts) {
  return facts.rows_per_second > 0 ? fmt::format(", {} rows/s", count_text(facts.rows_per_second)) : "";
}

}  // namespace

std::string progress_line(const ProgressFacts& facts, int columns, bool is_utf8) {
  const double part =
      facts.total == 0 ? 1.0 : std::min(1.0, static_cast<double>(facts.done) / static_cast<double>(facts.total));
  const double left = static_cast<double>(facts.total) * (1 - part);
  const std::string percent = fmt::format(" {:3.0f} %", part * 100), size = " of " + bytes_text(facts.total);
  const std::string rate = rate_text(facts), rows = rows_text(facts);
  const std::string eta = facts.bytes_per_second > 0 ? ", " + clock_text(left / facts.bytes_per_second) + " left" : "";
  const auto room = static_cast<size_t>(std::max(columns - 1, 1));  // a full line would wrap
  for (const size_t width : {30, 20, 10}) {
    const std::string line = facts.title + bar_of(part, width, is_utf8) + percent + size + rate + rows + eta;
    if (num_columns(line) <= room) return line;
  }
  for (const std::string& end : {percent + size + rate + rows + eta, percent + size + rate + eta, percent + size + eta})
    if (num_columns(facts.title + end) <= room) return facts.title + end;
  for (const std::string& end : {percent + eta, percent}) {
    constexpr size_t kLeastTitle = 12;
    if (num_columns(end) + kLeastTitle <= room) return cut(facts.title, room - num_columns(end), is_utf8) + end;
  }
  return percent.size() <= room ? percent : "";
}

ProgressBar::ProgressBar(std::string title)
    : title_(printable(title, 1000)),
      terminal_(log::shows_status()),
      first_(Clock::now()),
      ticker_("progress", terminal_ ? kRedraw : std::chrono::duration_cast<std::chrono::milliseconds>(kLogPeriod),
              [this] {
                show();
                return true;
              }) {}

ProgressBar::~ProgressBar() {
  ticker_.stop();
  if (terminal_) log::set_status("");
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view what, uint64_t num_rows) {
  if (what != what_ || !is_known_.load(std::memory_order_relaxed)) {  // only this thread changes it
    std::lock_guard lock(mutex_);
    what_ = what;
    first_ = Clock::now();
    first_done_ = done;
    first_rows_ = num_rows;
  }
  done_.store(done, std::memory_order_relaxed);
  total_.store(total, std::memory_order_relaxed);
  num_rows_.store(num_rows, std::memory_order_relaxed);
  is_known_.store(true, std::memory_order_release);
}

void ProgressBar::show() {
  if (!is_known_.load(std::memory_order_acquire)) return;
  ProgressFacts facts{.title = title_, .done = done_, .total = total_};
  std::string what;
  {
    std::lock_guard lock(mutex_);
    what = what_;
    const double seconds = std::chrono::duration<double>(Clock::now() - first_).count();
    const uint64_t rows = num_rows_;
    if (seconds > 0 && facts.done > first_done_)
      facts.bytes_per_second = static_cast<double>(facts.done - first_done_) / seconds;
    if (seconds > 0 && rows > first_rows_) facts.rows_per_second = static_cast<double>(rows - first_rows_) / seconds;
  }
  if (terminal_)
    log::set_status(progress_line(facts, terminal_columns(), locale_is_utf8()));
  else
    log::info("{} {}: {} of {}{}{}", title_, what, bytes_text(facts.done), bytes_text(facts.total), rate_text(facts),
              rows_text(facts));
}

}  // namespace chassis
