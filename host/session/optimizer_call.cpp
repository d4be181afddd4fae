// Translates the arguments to the C table, and offers sums over parameters.
#include "host/session/optimizer_call.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "host/plugin/status.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

// Implements the sum of chassis_optimizer_step_t. Of several replicas, only one counts.
struct SumOverParameters {
  Communicator* communicator;  // NULL: this rank has all parameters
  std::span<const uint8_t> counts;

  void offer(chassis_optimizer_step_t& step) {
    step.impl = this;
    step.sum_over_parameters = [](const chassis_optimizer_step_t* s, const double* values, uint32_t num_values,
                                  double* sums) {
      return guarded([&] { static_cast<const SumOverParameters*>(s->impl)->sum(values, {sums, num_values}); });
    };
  }
  void sum(const double* values, std::span<double> sums) const {
    std::ranges::fill(sums, 0.0);
    for (size_t tensor = 0; tensor < counts.size(); ++tensor)
      for (size_t i = 0; i < sums.size(); ++i)
        if (counts[tensor]) sums[i] += values[tensor * sums.size() + i];
    if (communicator != nullptr) communicator->sum(communicator->group({}), sums, "sum over parameters");
  }
};

}  // namespace

Tensor OptimizerCall::workspace(const OptimizerPlugin& plugin, Device device) const {
  const uint64_t bytes = plugin.workspace_bytes(facts);
  if (bytes == 0) return {};
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes)}, Dtype::u8, device);
}

void OptimizerCall::run(const OptimizerPlugin& plugin, int64_t step, double lr, double grad_scale,
                        Device device) const {
  chassis_optimizer_step_t args{};
  args.struct_size = sizeof(args);
  args.num_tensors = static_cast<uint32_t>(params.size());
  args.step = step;
  args.lr = lr;
  args.grad_scale = grad_scale;
  args.params = params.data();
  args.grads = grads.data();
  args.states = states.data();
  args.weight_decay = weight_decay.data();
  const bool is_scaled = std::any_of(lr_scale.begin(), lr_scale.end(), [](double f) { return f != 1.0; });
  args.lr_scale = is_scaled ? lr_scale.data() : nullptr;
  args.num_states = num_states.data();
  args.parameters = facts.data();
  const MemoryTag tag(MemoryCategory::kWorkspace);
  const Tensor scratch = workspace(plugin, device);
  args.stream = current_stream(device);
  args.workspace = scratch ? scratch.data() : nullptr;
  args.workspace_bytes = scratch ? scratch.num_bytes() : 0;
  SumOverParameters sums{communicator, counts};
  if (plugin.sums()) sums.offer(args);
  plugin.step(args);
}

}  // namespace chassis
