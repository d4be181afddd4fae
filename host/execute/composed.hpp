// The backward of composed nodes.
#pragma once

#include "host/compile/resolve.hpp"

namespace chassis {

// Runs the backward of a composed node with LibTorch's autograd, because its provider offers none. Fills
// `call` as the backward functions of chassis_ops_t do: creates grad_inputs, writes or adds to grad_params.
void run_composed_backward(const Node& node, chassis_call_t& call);

}  // namespace chassis
