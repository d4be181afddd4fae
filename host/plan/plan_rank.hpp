// One rank's run in miniature: load, two steps and a save on meta tensors, in the order of the real one. Everything but
// the kernels is the run's own code.
#pragma once

#include "host/plan/plan.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The session is made without a device, of a world that is not there. `header_bytes`: of the largest file of a save.
// May be called again, with another choice of recompute.
RankPlan rehearse(Session& session, Recompute recompute, uint64_t header_bytes);

}  // namespace chassis
