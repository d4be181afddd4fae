// Schedules as text, in the format of torch.distributed.pipelining (schedules.py, format "compute_only"): each line is
// a rank, each cell the work of the rank in one unit of time. "2F0" is the forward of stage 2 and micro-batch 0, B a
// backward, I backward_inputs, W backward_params; an empty cell is idle. Lines that are empty or only white space are
// skipped, and so is a byte-order mark.
#pragma once

#include <string>
#include <string_view>

#include "host/state/schedule.hpp"

namespace chassis {

// Cells define on which ranks the stages lie; idle cells are dropped. `num_ranks` is the number of ranks on the mesh;
// 0: any number. The schedule is proven (schedule_proof.hpp). Throws a config error with file, line and column.
Schedule parse_schedule_csv(std::string_view text, const std::string& file, int num_ranks = 0);

// Adds idle cells, so that each cell comes after all that it needs, as PyTorch requires. The schedule must be proven.
std::string schedule_csv(const Schedule& schedule);

}  // namespace chassis
