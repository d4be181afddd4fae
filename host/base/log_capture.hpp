// Collects counted warnings instead of reporting them.
#pragma once

#include <string>
#include <vector>

namespace chassis::log {

// During its lifetime, counted warnings of this thread are kept here, and neither logged nor counted.
class CapturedWarnings {
 public:
  CapturedWarnings();
  ~CapturedWarnings();
  CapturedWarnings(const CapturedWarnings&) = delete;
  CapturedWarnings& operator=(const CapturedWarnings&) = delete;
  void add(std::string text) { texts_.push_back(std::move(text)); }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  CapturedWarnings* outer_;
  std::vector<std::string> texts_;
};

}  // namespace chassis::log
