// Scalar metrics of the current step, set by the host and by plugins and taken by the trainer.
#pragma once

#include <map>
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
  // In order of first use. The store is empty afterwards.
  Values take();

 private:
  double& slot(std::string_view name);
  std::mutex mutex_;
  std::map<std::string, size_t, std::less<>> indexes_;  // in values_
  Values values_;
};

}  // namespace chassis
