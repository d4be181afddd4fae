// The number of GPUs that this process may use, which is the default number of ranks.
#pragma once

namespace chassis {

// As counted by the driver, which reads CUDA_VISIBLE_DEVICES; 0 without a driver. Occupies no GPU.
int num_visible_gpus();

}  // namespace chassis
