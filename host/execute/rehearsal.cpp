// The tensors of one node, forward and backward.
#include "host/execute/rehearsal.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "host/execute/kernel_runner.hpp"
#include "host/execute/piece_calls.hpp"
#include "host/execute/ring_attention.hpp"
#include "host/graph/op_table.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/service/tensor.hpp"

namespace chassis {
namespace {

Tensor value_tensor(const ResolvedBlock& block, ValueId id, const RunContext& context) {
  const GraphValue& value = block.block.values[id];
  return Tensor::empty(context.local_shape(value), dtype_of(value, context.options->compute), context.device());
}

// Charges the workspace to the category of the tensors that a kernel makes for itself.
MemoryCharge workspace(const Node& node, uint64_t num_bytes, const RunContext& context) {
  const auto category = node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations;
  return {num_bytes, category, context.device()};
}

// True if the input is a term of the node's first op, a sum: the terms of a sum share its gradient.
bool begins_with_sum(const ResolvedBlock& block, const Node& node, size_t input) {
  const Op& first = block.block.ops[node.ops[0]];
  return first.spec().shares_grad && (node.inputs[input] == first.inputs[0] || node.inputs[input] == first.inputs[1]);
}

// True if the input's gradient is the output's, viewed in the input's shape.
bool passes_through(const ResolvedBlock& block, const Node& node, size_t input) {
  const Op& last = block.block.ops[node.ops.back()];
  if (node.ops.size() == 1) return last.spec().shares_grad || last.spec().is_view;
  return last.spec().shares_grad && std::ranges::find(last.inputs, node.inputs[input]) != last.inputs.end();
}

// Fills the call as the kernel would: outputs and saved tensors.
void rehearse_forward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call) {
  for (size_t i = 0; i < node.outputs.size(); ++i)
    if (!call.outputs[i]) call.outputs[i] = value_tensor(block, node.outputs[i], context).release();
  if (call.flags & CHASSIS_CALL_TRAINING)
    for (uint32_t i = 0; i < node.infer.num_saved; ++i) {
      const chassis_saved_t& declared = node.infer.saved[i];
      call.saved[i] =
          Tensor::empty({declared.sizes, declared.num_dims}, static_cast<Dtype>(declared.dtype), context.device())
              .release();
    }
  workspace(node, node.infer.workspace_forward_bytes, context);
}

// Fills the call as the kernel would: gradients of inputs that were not lent.
void rehearse_backward(const ResolvedBlock& block, const Node& node, const RunContext& context, chassis_call_t& call) {
  Tensor of_sum;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.input_needs_grad[i] || call.grad_inputs[i]) continue;
    Tensor gradient;
    if (passes_through(block, node, i) && call.grad_outputs[0]) {
      const GraphValue& value = block.block.values[node.inputs[i]];
      gradient = Tensor::share(call.grad_outputs[0]).view(context.local_shape(value));
    } else if (begins_with_sum(block, node, i)) {
      if (!of_sum) of_sum = value_tensor(block, node.inputs[i], context);
      gradient = of_sum;
    } else {
      gradient = value_tensor(block, node.inputs[i], context);
    }
    call.grad_inputs[i] = gradient.release();
  }
  workspace(node, node.infer.workspace_backward_bytes, context);
}

}  // namespace

void Rehearsal::forward(KernelRunner& runner, const Node& node, const char*, const RunContext& sizes) const {
  rehearse_forward(runner.block, node, sizes, runner.call.raw);
}

void Rehearsal::forward_backward(KernelRunner& runner, const Node& node) const {
  rehearse_forward(runner.block, node, runner.context, runner.call.raw);
  rehearse_backward(runner.block, node, runner.context, runner.call.raw);
}

void Rehearsal::backward_inputs(KernelRunner& runner, const Node& node) const {
  rehearse_backward(runner.block, node, runner.context, runner.call.raw);
}

void Rehearsal::backward_params(KernelRunner& runner, const Node& node) const {
  rehearse_backward(runner.block, node, runner.context, runner.call.raw);
}

void Rehearsal::backward_piece(KernelRunner& runner, const Node& node, const PieceCalls& calls, int64_t piece) const {
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.input_needs_grad[i])
      runner.call.grad_inputs[i] =
          Tensor::empty(calls.input_sizes(i, piece),
                        dtype_of(runner.block.block.values[node.inputs[i]], runner.context.options->compute), device())
              .release();
  rehearse_backward(runner.block, node, calls.context(), runner.call.raw);
}

PartialAttention Rehearsal::attend(KernelRunner& runner, const Node& node, const AttentionCall& call) const {
  Tensor output = Tensor::empty(call.output_sizes(), call.q.dtype(), device());
  runner.workspace(node, node.infer.workspace_forward_bytes);
  return {std::move(output), Tensor::empty(call.log_sum_sizes(), Dtype::f32, device())};
}

std::array<Tensor, 3> Rehearsal::attend_backward(KernelRunner& runner, const Node& node, const AttentionCall& call,
                                                 const PartialAttention&, const Tensor&) const {
  runner.workspace(node, node.infer.workspace_backward_bytes);
  std::array<Tensor, 3> out;
  for (size_t i = 0; const Tensor* x : {&call.q, &call.k, &call.v})
    out[i++] = Tensor::empty(x->sizes(), x->dtype(), x->device());
  return out;
}

}  // namespace chassis
