// Shows progress and its rate: a bar on a terminal, a log line every 5 seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace chassis {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  // `done` and `total` in bytes. `what` names what is being read. Shows the rate of bytes, and of rows if there are
  // any.
  void update(uint64_t done, uint64_t total, std::string_view what, uint64_t num_rows = 0);

 private:
  std::string title_;
  bool terminal_;
  bool shown_ = false;
  std::string what_;  // what the rate is of
  uint64_t first_done_ = 0, first_rows_ = 0;
  std::chrono::steady_clock::time_point first_, last_;
};

}  // namespace chassis
