// What DeepSpeed's ZeRO optimizers save, stages 1 to 3, as whole tensors by name: fp32 masters, and moments as
// <name>.<state>. Layouts after deepspeed/utils/zero_to_fp32.py and deepspeed/runtime/zero/.
//   1, 2: each parameter group is one flat vector, its parameters one behind the other in the order of param_shapes;
//         it is cut into equal partitions, one a rank, and padding stands at its end
//   3:    each parameter is padded to a multiple of the ranks and cut by itself; a rank holds its parts one behind the
//         other, in sub-groups that may end within a part
// Refused: checkpoints of model, pipeline and expert parallel runs.
#pragma once

#include "flat.hpp"

namespace zero_import {

// The directory that save_checkpoint was given, with its file `latest`, or the folder of one step in it.
void scan(const Source& source, const Sink& sink);

}  // namespace zero_import
