// The learning rate of a run as a pure function of the step.
#pragma once

#include <cstdint>

#include "host/config/choices.hpp"

namespace chassis {

struct LearningRateSchedule {
  Curve curve = Curve::kConstant;
  double peak = 0.0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd: number of steps at the end, in which the rate falls
  double min_ratio = 0.0;   // last rate ÷ peak
  int64_t max_steps = 1;

  // The rate of step 1, 2, …, max_steps. Step k of a warm-up of n steps has peak·k/n. Then linear and cosine fall from
  // the peak to peak·min_ratio at max_steps (Loshchilov & Hutter 2017); wsd stays at the peak and falls linearly in its
  // last decay_steps (Hu et al. 2024).
  double at(int64_t step) const;
  // Whether every step after `step` has the rate 0, so that none of them learns anything.
  bool is_zero_after(int64_t step) const;
};

}  // namespace chassis
