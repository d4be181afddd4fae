// Collects counted warnings instead of reporting them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace chassis::log {

// During its lifetime, counted warnings of this thread are kept here, and neither logged nor counted.
class CapturedWarnings {
 public:
  CapturedWarnings();
  ~CapturedWarnings();
  CapturedWarnings(const CapturedWarnings&) = delete;
  CapturedWarnings& operator=(const CapturedWarnings&) = delete;
  // As counted_warning().
  struct Warning {
    std::string key, text;
  };
  void add(std::string key, std::string text) { warnings_.push_back({std::move(key), std::move(text)}); }
  const std::vector<Warning>& warnings() const { return warnings_; }

 private:
  CapturedWarnings* outer_;
  std::vector<Warning> warnings_;
};

}  // namespace chassis::log
