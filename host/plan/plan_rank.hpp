// Rehearses the run of one rank: load, two steps and a save on meta tensors, in the order of a real run and with its
// code, except for the kernels.
#pragma once

#include <optional>

#include "host/plan/plan_types.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The session is made without a device, and the other ranks need not exist. `header_bytes` is the largest file header
// in a save. With `counts_repeats`, work that a pipeline's rank repeats for other micro-batches is run four times, and
// counted for the rest; returns nothing if the third and the fourth time differ. May be called again with another
// recompute setting.
std::optional<RankPlan> rehearse(Session& session, Recompute recompute, uint64_t header_bytes, bool counts_repeats);

}  // namespace chassis
