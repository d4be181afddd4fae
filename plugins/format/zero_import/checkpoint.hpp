// Reads checkpoints of DeepSpeed's ZeRO optimizers, stages 1 to 3, as whole tensors by name: fp32 masters, and moments
// as <name>.<state>. The layouts follow deepspeed/utils/zero_to_fp32.py and deepspeed/runtime/zero/.
//   1, 2: each parameter group is one flat vector: its parameters one after another in the order of param_shapes, then
//         padding; it is cut into equal partitions, one per rank
//   3:    each parameter is padded to a multiple of the number of ranks and cut separately; a rank holds its parts one
//         after another, in sub-groups that may end within a part
// Refuses checkpoints of model, pipeline and expert parallel runs.
#pragma once

#include "flat.hpp"

namespace zero_import {

// `source`: the directory that was passed to save_checkpoint, with its file `latest`, or the folder of one step in it.
void scan(const Source& source, const Sink& sink);

}  // namespace zero_import
