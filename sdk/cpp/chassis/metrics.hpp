// Scalars of the current step.
#pragma once

#include <string_view>

#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

// [step] The last value of a step wins.
inline void set_metric(const Host& host, std::string_view name, double value) {
  const auto& metrics = host.service<chassis_metrics_t>();
  metrics.set(&metrics, str(name), value);
}

// [step] Adds to the step's value.
inline void add_metric(const Host& host, std::string_view name, double value) {
  const auto& metrics = host.service<chassis_metrics_t>();
  metrics.add(&metrics, str(name), value);
}

CHASSIS_SDK_END
