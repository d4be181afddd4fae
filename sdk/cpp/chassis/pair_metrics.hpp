// Metrics of pairs of answers, with the names that they have in other trainers.
#pragma once

#include <cstddef>
#include <vector>

#include "chassis/objective.hpp"

CHASSIS_SDK_BEGIN

// The first metrics of a description; others follow from this number on.
constexpr size_t kNumPairMetrics = 6;
inline std::vector<ObjectiveMetric> pair_metrics() {
  return {{"rewards/chosen"},
          {"rewards/rejected"},
          {"rewards/accuracies", CHASSIS_BETTER_HIGHER},
          {"rewards/margins", CHASSIS_BETTER_HIGHER},
          {"logps/chosen"},
          {"logps/rejected"}};
}

// Adds them for one pair. An accurate pair has the larger reward at its chosen answer.
struct PairNumbers {
  double chosen_reward = 0, rejected_reward = 0;
  double chosen_logp = 0, rejected_logp = 0;
};
inline void add_pair_metrics(ObjectiveResult& out, const PairNumbers& pair) {
  size_t metric = 0;
  for (const double value :
       {pair.chosen_reward, pair.rejected_reward, pair.chosen_reward > pair.rejected_reward ? 1.0 : 0.0,
        pair.chosen_reward - pair.rejected_reward, pair.chosen_logp, pair.rejected_logp})
    out.add_metric(metric++, value);
}

CHASSIS_SDK_END
