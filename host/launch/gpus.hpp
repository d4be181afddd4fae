// How many GPUs this process may use; decides how many ranks a run has where nobody says it.
#pragma once

namespace chassis {

// As the driver counts them, which reads CUDA_VISIBLE_DEVICES; 0 without a driver. Takes hold of no GPU.
int num_visible_gpus();

}  // namespace chassis
