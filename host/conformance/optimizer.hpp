// Whether an optimizer keeps the promises of its header. There is no oracle for the arithmetic of just any optimizer:
// what is checked is what the host relies on when it shards, saves and repeats a run.
#pragma once

#include <string>
#include <vector>

#include "chassis/kind/optimizer.h"

namespace chassis {

// [step] Everything that is wrong, with both numbers; empty if nothing is. On the CPU, in well under a second. Throws
// what the optimizer's own step fails with.
//   - states have roles that can be file names, known dtypes, shapes and granularities, the same whenever asked
//   - a step moves parameters, and leaves everything finite
//   - zero gradients without decay leave parameters as they are; so does lr = 0
//   - the first step decays a parameter by lr · weight_decay of itself, whatever its gradient, each tensor at its own
//   rate
//   - lr_scale is a factor of lr, for each tensor its own
//   - the same input gives the same bits: again, with one thread, and with a gradient scale of 1/2 on doubled gradients
//   - where states may be cut, a step on the pieces of a parameter, empty ones too, is the step on the whole
std::vector<std::string> optimizer_failures(const chassis_optimizer_t& optimizer, chassis_instance* self,
                                            const std::string& who);

}  // namespace chassis
