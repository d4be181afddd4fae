// Runs one block: forward node by node, backward in reverse. Each tensor is dropped after its last use.
#pragma once

#include <map>
#include <string>

#include "host/execute/run_context.hpp"

namespace chassis {

// Returns the block's outputs by name. For training, `frame` then holds what run_backward needs.
std::map<std::string, Tensor> run_forward(const ResolvedBlock& block, const RunContext& context,
                                          const std::map<std::string, Tensor>& inputs, const Fields& fields,
                                          bool training, Frame& frame);

// Takes the gradients of the outputs and returns those of the inputs; parameter gradients go into their buffers.
std::map<std::string, Tensor> run_backward(const ResolvedBlock& block, const RunContext& context,
                                           std::map<std::string, Tensor> output_gradients, Frame& frame);

// The same in two parts, bit for bit. The first leaves in `frame` only what the second needs. Nodes that cannot split
// their backward (COMPOSED, and FORWARD_BACKWARD, whose forward computes the gradients) do all of it in the first.
std::map<std::string, Tensor> run_backward_inputs(const ResolvedBlock& block, const RunContext& context,
                                                  std::map<std::string, Tensor> output_gradients, Frame& frame);
void run_backward_params(const ResolvedBlock& block, const RunContext& context, Frame& frame);

}  // namespace chassis
