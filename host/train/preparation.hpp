// All that a run does before its first step.
#pragma once

#include "host/train/prepared_run.hpp"
#include "host/train/run_inputs.hpp"

namespace chassis {

// [control][all-ranks] First does the work that needs no directory, then locks the directory, then checks all, then
// writes the first byte. Starts from new weights or resumes, and logs what the run will do. On a failure, `run` keeps
// the objects made so far.
void prepare_run(const RunInputs& inputs, PreparedRun& run);

}  // namespace chassis
