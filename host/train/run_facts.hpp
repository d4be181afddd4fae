// The facts about a run for its report: model, data, device, mesh and planned memory.
#pragma once

#include <cstdint>

#include "host/base/json_fwd.hpp"
#include "host/data/train_data.hpp"
#include "host/plan/plan.hpp"
#include "host/session/session.hpp"

namespace chassis {

struct RunFacts {
  const TrainData& data;
  int64_t max_steps = 0, rows_per_step = 0;
  double flops_per_token = 0.0, peak_flops = 0.0;  // 0: unknown
  double needed_flops_per_token = 0.0;             // without gradients of frozen weights
  const RankPlan* plan = nullptr;                  // this rank's; NULL: not planned
};
// The document "chassis.run/1". All sizes are in bytes.
Json run_facts(Session& session, const RunFacts& facts);

}  // namespace chassis
