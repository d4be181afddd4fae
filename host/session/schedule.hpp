// The learning rate over a run, as a pure function of the step.
#pragma once

#include <cstdint>
#include <string>

namespace chassis {

struct LearningRateSchedule {
  std::string name = "constant";  // constant, linear, cosine, wsd
  double peak = 0.0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // wsd: the last steps, in which it falls
  double min_ratio = 0.0;   // the last rate as a part of the peak
  int64_t max_steps = 1;

  // Of step 1, 2, …, max_steps. Step k of a warm-up of n runs at peak·k/n; then linear and cosine fall from the peak to
  // peak·min_ratio at max_steps (Loshchilov & Hutter 2017), wsd stays and falls linearly in its last decay_steps
  // (Hu et al. 2024).
  double at(int64_t step) const;
};

}  // namespace chassis
