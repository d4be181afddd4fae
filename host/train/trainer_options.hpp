// The options of a trainer, as the configuration and the state of a session say.
#pragma once

#include <cstdint>

#include "host/train/prepared_run.hpp"
#include "host/train/run_inputs.hpp"
#include "host/train/trainer.hpp"

namespace chassis {

// The options for the session's present configuration and state. `inputs` and `run` outlive
// the trainer.
TrainerOptions trainer_options(const RunInputs& inputs, PreparedRun& run, int64_t max_steps);

}  // namespace chassis
