// Draws the progress bar on stderr, or logs its progress.
#include "host/session/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "host/base/log.hpp"
#include "host/base/units.hpp"

namespace chassis {

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)),
      terminal_(isatty(STDERR_FILENO) != 0),
      first_(std::chrono::steady_clock::now()),
      last_(first_) {}

ProgressBar::~ProgressBar() {
  if (shown_ && terminal_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(uint64_t done, uint64_t total, std::string_view what, uint64_t num_rows) {
  const auto now = std::chrono::steady_clock::now();
  if (what != what_) {
    what_ = what;
    first_ = now;
    first_done_ = done;
    first_rows_ = num_rows;
  }
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(5);
  if (now - last_ < pause) return;
  last_ = now;
  shown_ = true;
  const double part = total ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  const double seconds = std::chrono::duration<double>(now - first_).count();
  std::string rate;
  if (seconds > 0 && done >= first_done_) {
    rate = fmt::format(", {:.1f} MB/s", static_cast<double>(done - first_done_) / seconds * 1e-6);
    if (num_rows > first_rows_)
      rate += fmt::format(", {} rows/s", count_text(static_cast<double>(num_rows - first_rows_) / seconds));
  }
  if (!terminal_) {
    log::info("{} {}: {} of {}{}", title_, what, bytes_text(done), bytes_text(total), rate);
    return;
  }
  constexpr int kWidth = 30;
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  std::fprintf(stderr, "\r\033[K%s [%s%s] %3.0f%% %s%s", title_.c_str(),
               std::string(static_cast<size_t>(filled), '#').c_str(),
               std::string(static_cast<size_t>(kWidth - filled), '.').c_str(), part * 100.0, bytes_text(total).c_str(),
               rate.c_str());
}

}  // namespace chassis
