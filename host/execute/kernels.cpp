// Describes a call, makes it, and checks the handles that the kernel returns.
#include "host/execute/kernels.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/execute/composed.hpp"
#include "host/execute/kernel_runner.hpp"
#include "host/execute/ring_attention.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/status.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/step_place.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

using Kernel = chassis_status_t* (*)(chassis_instance*, void*, chassis_call_t*);

// The key for the first op with random bits. Unlike its index, an op's name does not depend on the strategies.
uint64_t random_key(const KernelRunner& runner, const Node& node) {
  for (uint32_t id : node.ops)
    if (const Op& op = runner.block.block.ops[id]; op.spec().is_random)
      return hash64(op.name + "#" + std::to_string(runner.context.unit), runner.context.random.key);
  return 0;
}

// Sets what a kernel gets in addition to its tensors.
void describe_call(KernelRunner& runner, const Node& node) {
  runner.call.raw.stream = current_stream(runner.context.device());
  runner.call.raw.random_key = random_key(runner, node);
  runner.call.raw.first_row = runner.context.random.first_row;
}

void call_kernel(KernelRunner& runner, const Node& node, Kernel kernel, const char* phase, uint64_t workspace_bytes) {
  KernelCall& call = runner.call;
  describe_call(runner, node);
  const Tensor scratch = runner.workspace(node, workspace_bytes);
  call.raw.workspace = scratch ? scratch.data() : nullptr;
  call.raw.workspace_bytes = scratch ? scratch.num_bytes() : 0;
  const PluginCall in_plugin(*node.site, phase, static_cast<int64_t>(runner.context.unit));
  call.remember_given();
  chassis_status_t* const status =
      call_plugin([&] { return kernel(node.provider->self, node.kernel.get(), &call.raw); });
  const std::string invalid = call.drop_invalid(node.provider->tracked);
  if (status) throw_if_failed(status, provider_on(node));
  if (!invalid.empty()) throw plugin_error(provider_on(node) + own_call_phase() + ": " + invalid);
}

void lend(KernelRunner& runner, const Node& node, bool forward, const AttentionCall& attention) {
  KernelCall& call = runner.call;
  call.reset(node, forward);
  call.raw.flags = CHASSIS_CALL_TRAINING;
  call.inputs[0] = attention.q.handle(), call.inputs[1] = attention.k.handle(), call.inputs[2] = attention.v.handle();
  for (size_t i = 3; i < node.inputs.size(); ++i) call.inputs[i] = runner.handle(node.inputs[i]);
  call.raw.query_offset = attention.offsets.query;
  call.raw.key_offset = attention.offsets.key;
  call.raw.num_positions = attention.num_positions;
}

}  // namespace

void Kernels::enter_unit(const char* phase, int microbatch, int64_t unit) const {
  chassis::enter_unit(phase, microbatch, unit);
}

void Kernels::enter_node(const std::string& name) const { chassis::enter_node(&name); }

void Kernels::forward(KernelRunner& runner, const Node& node, const char* phase, const RunContext&) const {
  call_kernel(runner, node, node.provider->table->forward, phase, node.infer.workspace_forward_bytes);
}

void Kernels::forward_backward(KernelRunner& runner, const Node& node) const {
  call_kernel(runner, node, node.provider->table->forward_backward, "forward_backward",
              node.infer.workspace_forward_bytes + node.infer.workspace_backward_bytes);
}

bool Kernels::backward_by_autograd(KernelRunner& runner, const Node& node) const {
  if (!node.flag(CHASSIS_KERNEL_COMPOSED)) return false;
  describe_call(runner, node);
  const PluginCall in_plugin(*node.site, "backward by autograd", static_cast<int64_t>(runner.context.unit));
  run_composed_backward(node, runner.call.raw);
  return true;
}

void Kernels::backward_inputs(KernelRunner& runner, const Node& node) const {
  call_kernel(runner, node, node.provider->table->backward_inputs, "backward_inputs",
              node.infer.workspace_backward_bytes);
}

void Kernels::backward_params(KernelRunner& runner, const Node& node) const {
  call_kernel(runner, node, node.provider->table->backward_params, "backward_params",
              node.infer.workspace_backward_bytes);
}

void Kernels::deferred_backward_params(KernelRunner& runner, const Node& node) const { backward_params(runner, node); }

void Kernels::backward_piece(KernelRunner& runner, const Node& node, const PieceCalls&, int64_t) const {
  if (!backward_by_autograd(runner, node)) backward_inputs(runner, node);
}

PartialAttention Kernels::attend(KernelRunner& runner, const Node& node, const AttentionCall& attention) const {
  const std::vector<int64_t> sizes = attention.output_sizes(), log_sum_sizes = attention.log_sum_sizes();
  KernelCall& call = runner.call;
  Tensor output = Tensor::empty(sizes, attention.q.dtype(), device());
  lend(runner, node, true, attention);
  if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS)) call.outputs[0] = output.release();
  forward(runner, node, "forward", runner.context);
  if (call.outputs[0] == nullptr || call.saved[0] == nullptr)
    throw plugin_error(provider_on(node) + ": attention with key_part returned no output or no log sum");
  PartialAttention out{KernelCall::take(call.outputs[0]), KernelCall::take(call.saved[0])};
  if (out.output.sizes() != sizes || out.log_sum.sizes() != log_sum_sizes || out.log_sum.dtype() != Dtype::f32)
    throw plugin_error(provider_on(node) + ": attention with key_part returned an output " +
                       text(Shape(out.output.sizes())) + " and a log sum " + text(Shape(out.log_sum.sizes())) +
                       " for queries " + text(Shape(attention.q.sizes())));
  return out;
}

std::array<Tensor, 3> Kernels::attend_backward(KernelRunner& runner, const Node& node, const AttentionCall& attention,
                                               const PartialAttention& whole, const Tensor& gradient) const {
  KernelCall& call = runner.call;
  lend(runner, node, false, attention);
  call.outputs[0] = whole.output.handle();
  call.saved[0] = whole.log_sum.handle();
  call.grad_outputs[0] = gradient.handle();
  backward_inputs(runner, node);
  std::array<Tensor, 3> out;
  for (size_t i = 0; i < out.size(); ++i)
    if (call.grad_inputs[i]) out[i] = KernelCall::take(call.grad_inputs[i]);
  return out;
}

}  // namespace chassis
