// Shows progress: a bar on a terminal, a log line every 5 seconds elsewhere.
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
  // `done` and `total` in bytes. `what` names what is being read.
  void update(uint64_t done, uint64_t total, std::string_view what);

 private:
  std::string title_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace chassis
