// A kernel's tensors are lent by the caller; the rest of a call is added here.
#include "host/execute/kernel_runner.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "host/service/memory.hpp"

namespace chassis {

Tensor KernelRunner::workspace(const Node& node, uint64_t bytes) const {
  if (!node.flag(CHASSIS_KERNEL_HOST_WORKSPACE) || bytes == 0) return {};
  const int64_t planned = context.options->batch * context.options->time;
  const int64_t now = context.sizes.batch * context.sizes.time;
  const int64_t times = std::max<int64_t>(1, (now + planned - 1) / planned);
  const MemoryTag tag(MemoryCategory::kWorkspace);
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes) * times}, Dtype::u8, context.device());
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
