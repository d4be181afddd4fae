// Metrics in the order of their first use.
#include "host/service/metrics.hpp"

namespace chassis {

double& MetricsStore::slot(std::string_view name) {
  const auto known = indexes_.find(name);
  if (known != indexes_.end()) return values_[known->second].second;
  values_.emplace_back(name, 0.0);
  indexes_.emplace(name, values_.size() - 1);
  return values_.back().second;
}

void MetricsStore::set(std::string_view name, double value) {
  const std::lock_guard lock(mutex_);
  slot(name) = value;
}

void MetricsStore::add(std::string_view name, double value) {
  const std::lock_guard lock(mutex_);
  slot(name) += value;
}

MetricsStore::Values MetricsStore::take() {
  const std::lock_guard lock(mutex_);
  indexes_.clear();
  return std::exchange(values_, {});
}

}  // namespace chassis
