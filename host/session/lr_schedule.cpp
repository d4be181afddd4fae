// The curves of the learning rate.
#include "host/session/lr_schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace chassis {

double LearningRateSchedule::at(int64_t step) const {
  if (step <= warmup_steps && warmup_steps > 0)
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (curve == Curve::kConstant) return peak;
  const int64_t begin = curve == Curve::kWsd ? std::max(warmup_steps, max_steps - decay_steps) : warmup_steps;
  const int64_t length = max_steps - begin;
  if (step <= begin || length <= 0) return peak;
  const double progress = std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(length));
  const double shape = curve == Curve::kCosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress)) : 1.0 - progress;
  return peak * (min_ratio + (1.0 - min_ratio) * shape);
}

bool LearningRateSchedule::is_zero_after(int64_t step) const {
  if (peak == 0.0) return true;
  for (int64_t later = step + 1; later <= max_steps; ++later)
    if (at(later) != 0.0) return false;
  return true;
}

}  // namespace chassis
