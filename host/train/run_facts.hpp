// What a run is, for its report: model, data, device, mesh and planned memory.
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
  const RankPlan* plan = nullptr;                  // of this rank; NULL: not planned
};
// "chassis.run/1"; bytes throughout.
Json run_facts(Session& session, const RunFacts& facts);

}  // namespace chassis
