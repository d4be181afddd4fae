// Runs a node without its kernel: allocates the tensors that `infer` declares on the meta device, so that counters show
// the memory of a step. The ops decide which gradients share memory: those of a sum's terms, and that of a reshape.
#pragma once

#include "host/execute/run_context.hpp"

namespace chassis {

// Fill `call` as the kernel would: outputs and saved tensors; gradients of inputs that were not lent.
void rehearse_forward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call);
void rehearse_backward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call);

}  // namespace chassis
