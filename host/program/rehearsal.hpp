// A node without its kernel: the tensors that `infer` says it makes are allocated on the device meta, so that counters
// show what a step takes. Which gradients share memory follows from the ops: those of a sum's terms, and of a reshape.
#pragma once

#include "host/program/block_run.hpp"

namespace chassis {

// Fill `call` as the kernel would: outputs and saved tensors; gradients of inputs that were not lent.
void rehearse_forward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call);
void rehearse_backward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call);

}  // namespace chassis
