// The start of a run from new weights, or from a checkpoint with the state of the trainer, of the data and of the best
// evaluation that was saved in addition to the tensors.
#pragma once

#include <cstdint>

#include "host/base/json_fwd.hpp"
#include "host/compile/pipeline.hpp"
#include "host/session/session.hpp"
#include "host/train/prepared_run.hpp"

namespace chassis {

// The state that a checkpoint holds in addition to the tensors. `run` has a trainer. `seed` is run.seed.
Json state_to_save(const PreparedRun& run, const Pipeline& pipeline, int64_t seed);

// [control][all-ranks] Fills the tensors, and restores the saved state if the run resumes. `run` has a trainer and
// saves. Throws a config error if no step is left to train, and if the checkpoint is of a run with other settings that
// may not change.
void resume_or_start_anew(Session& session, PreparedRun& run);

}  // namespace chassis
