// What DeepSpeed's ZeRO optimizers save, stages 1 to 3, as whole tensors by name: fp32 masters, and moments as
// <name>.<state>. Layouts after deepspeed/utils/zero_to_fp32.py and deepspeed/runtime/zero/.
//   1, 2: each parameter group is one flat vector, its parameters one behind the other in the order of param_shapes,
//   cut
//         into equal partitions, one a rank; padding stands at its end
//   3:    each parameter is padded to a multiple of the ranks and cut by itself; a rank holds its parts one behind the
//         other, in sub-groups that may end within a part
// Refused: checkpoints of model, pipeline and expert parallel runs.
#pragma once

#include "source.hpp"

namespace zero_import {

// A box of a tensor, contiguous in a file.
struct FoundTensor {
  std::string_view name;
  uint32_t dtype = 0;  // CHASSIS_DTYPE_…
  std::vector<int64_t> global_shape, box_offset, box_shape;
  uint64_t num_bytes = 0;
  uint32_t rank = 0;
  uint32_t file = 0;
  uint64_t offset = 0;
};

struct Sink {
  std::function<void(const FoundTensor&)> tensor;
  std::function<void(std::string_view key, std::string_view value)> metadata;
  // Something that is left out.
  std::function<void(std::string_view key, std::string_view text)> warning;
};

// The directory that save_checkpoint was given, with its file `latest`, or the folder of one step in it.
void scan(const Source& source, const Sink& sink);

// Cuts elements [begin, end) of a row-major tensor into boxes, in order.
struct Cut {
  std::vector<int64_t> offset, shape;
};
std::vector<Cut> boxes_of_range(const std::vector<int64_t>& shape, uint64_t begin, uint64_t end);

}  // namespace zero_import
