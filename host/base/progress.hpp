// Shows progress and its rate: on a terminal a line that is redrawn, elsewhere a log line every 5 seconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "host/base/ticker.hpp"

namespace chassis {

struct ProgressFacts {
  std::string title;
  uint64_t done = 0, total = 0;  // bytes
  double bytes_per_second = 0;   // 0: not known yet
  double rows_per_second = 0;    // 0: there are no rows
};

// At most `columns` wide. On a narrow terminal the bar, the rate of rows, the rate of bytes and the remaining time are
// left out, in this order, and then the title is cut.
std::string progress_line(const ProgressFacts& facts, int columns, bool is_utf8);

// A line of its own on stderr, until this object is destroyed; see log::set_status. Another thread draws it.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // `done` and `total` in bytes. `what` names what is being read; the rate begins again when it changes. Costs a few
  // stores. One thread at a time.
  void update(uint64_t done, uint64_t total, std::string_view what, uint64_t num_rows = 0);

 private:
  using Clock = std::chrono::steady_clock;

  void show();

  const std::string title_;
  const bool terminal_;
  std::atomic<uint64_t> done_ = 0, total_ = 0, num_rows_ = 0;
  std::atomic<bool> is_known_ = false;  // update() was called
  std::mutex mutex_;                    // guards the members below, except ticker_
  std::string what_;
  uint64_t first_done_ = 0, first_rows_ = 0;
  Clock::time_point first_;
  Ticker ticker_;  // last, since it uses all of the above
};

}  // namespace chassis
