// Metrics in the order of their first use.
#include "host/service/metrics.hpp"

namespace chassis {

double& MetricsStore::slot(std::string_view name) {
  for (auto& [known, value] : values_)
    if (known == name) return value;
  return values_.emplace_back(name, 0.0).second;
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
  return std::exchange(values_, {});
}

}  // namespace chassis
