// A kernel's tensors are lent by the caller; the rest of a call is added here.
#include "host/execute/kernel_runner.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "host/base/hash.hpp"
#include "host/execute/composed.hpp"
#include "host/execute/rehearsal.hpp"
#include "host/graph/op_table.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/status.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/memory.hpp"

namespace chassis {

void KernelRunner::run(const Node& node, Kernel kernel, const char* phase, const RunContext& sizes) {
  const auto* table = node.provider->table;
  if (!context.rehearsal) {
    describe_call(node);
    const Tensor scratch = workspace(node, kernel == table->forward            ? node.infer.workspace_forward_bytes
                                           : kernel == table->forward_backward ? node.infer.workspace_forward_bytes +
                                                                                     node.infer.workspace_backward_bytes
                                                                               : node.infer.workspace_backward_bytes);
    call.raw.workspace = scratch ? scratch.data() : nullptr;
    call.raw.workspace_bytes = scratch ? scratch.num_bytes() : 0;
    const PluginCall in_plugin(*node.site, phase, unit());
    call.remember_given();
    chassis_status_t* const status =
        call_plugin([&] { return kernel(node.provider->self, node.kernel.get(), &call.raw); });
    const std::string invalid = call.drop_invalid(node.provider->tracked);
    if (status) throw_if_failed(status, provider_on(node));
    if (!invalid.empty()) throw plugin_error(provider_on(node) + own_call_phase() + ": " + invalid);
    return;
  }
  const bool is_forward = kernel == table->forward;
  if (is_forward || (kernel != nullptr && kernel == table->forward_backward))
    rehearse_forward(block, node, sizes, call.raw);
  if (!is_forward) rehearse_backward(block, node, sizes, call.raw);
}

Tensor KernelRunner::workspace(const Node& node, uint64_t bytes) const {
  if (!node.flag(CHASSIS_KERNEL_HOST_WORKSPACE) || bytes == 0) return {};
  const int64_t planned = context.options->batch * context.options->time, now = context.batch * context.time;
  const int64_t times = std::max<int64_t>(1, (now + planned - 1) / planned);
  const MemoryTag tag(MemoryCategory::kWorkspace);
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes) * times}, Dtype::u8, context.device());
}

void KernelRunner::run_composed(const Node& node) {
  describe_call(node);
  const PluginCall in_plugin(*node.site, "backward by autograd", unit());
  run_composed_backward(node, call.raw);
}

// Sets what a kernel gets in addition to its tensors.
void KernelRunner::describe_call(const Node& node) {
  call.raw.stream = current_stream(context.device());
  call.raw.random_key = random_key(node);
  call.raw.first_row = context.random.first_row;
}

// Returns the key for the first op with random bits. Unlike its index, an op's name does not depend on the strategies.
uint64_t KernelRunner::random_key(const Node& node) const {
  for (uint32_t op : node.ops)
    if (block.block.ops[op].spec().is_random)
      return hash64(block.block.ops[op].name + "#" + std::to_string(context.unit), context.random.key);
  return 0;
}

Tensor KernelRunner::empty(ValueId v) const {
  return empty(v, dtype_of(block.block.values[v], context.options->compute));
}

void KernelRunner::accumulate(ValueId value, Tensor gradient) {
  if (!gradient) return;
  Tensor& sum = frame.gradients[value];
  if (!sum) {
    sum = std::move(gradient);
    return;
  }
  if (!owns_gradient(value) || is_deferred(sum)) sum = sum.clone();
  sum.add(gradient);
}

bool KernelRunner::owns_gradient(ValueId value) const {
  const Tensor& gradient = frame.gradients[value];
  for (ValueId v = 0; v < frame.gradients.size(); ++v)
    if (v != value && frame.gradients[v] && frame.gradients[v].shares_storage_with(gradient)) return false;
  return true;
}

bool KernelRunner::is_deferred(const Tensor& tensor) const {
  const auto shares = [&](const Tensor& kept) { return kept && kept.shares_storage_with(tensor); };
  const auto any_shares = [&](const std::vector<Tensor>& kept) {
    return std::any_of(kept.begin(), kept.end(), shares);
  };
  return std::any_of(frame.deferred.begin(), frame.deferred.end(), [&](const DeferredParams& d) {
    return any_shares(d.inputs) || any_shares(d.outputs) || any_shares(d.saved) || any_shares(d.grad_outputs);
  });
}

}  // namespace chassis
