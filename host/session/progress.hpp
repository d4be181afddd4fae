// A progress bar on a terminal, a few plain lines elsewhere.
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
  // `done` of `total` bytes.
  void update(uint64_t done, uint64_t total, std::string_view what);

 private:
  std::string title_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace chassis
