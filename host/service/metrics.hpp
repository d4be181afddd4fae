// Scalars of the current step, from the host and from plugins, until the trainer takes them.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis {

// [any]
class MetricsStore {
 public:
  using Values = std::vector<std::pair<std::string, double>>;

  void set(std::string_view name, double value);
  void add(std::string_view name, double value);
  // In order of first occurrence; empty afterwards.
  Values take();

 private:
  double& slot(std::string_view name);
  std::mutex mutex_;
  Values values_;
};

}  // namespace chassis
