#include "host/train/optimizer_driver.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

Descriptor state_descriptor(const Parameter& parameter, const chassis_state_desc_t& desc, const std::string& role) {
  Descriptor descriptor = parameter.descriptor;
  descriptor.fqn = parameter.name + "." + role;
  descriptor.dtype = static_cast<Dtype>(desc.dtype);
  if (desc.shape == CHASSIS_STATE_SCALAR) {
    descriptor = Descriptor::plain(descriptor.fqn, descriptor.dtype, Shape{1});
  } else if (desc.granularity == CHASSIS_GRANULARITY_BLOCK) {
    descriptor.granularity = Granularity::block_of(desc.block);
  } else if (desc.granularity == CHASSIS_GRANULARITY_MATRIX) {
    descriptor.granularity = Granularity::matrix();
  }
  return descriptor;
}

// The schema that a plugin declares makes sense; it decides what is allocated, sharded and saved.
void check_schema(const Instance& instance, const chassis_optimizer_t& table) {
  constexpr uint32_t kMostStates = 64;
  instance.require(CHASSIS_OPTIMIZER_ID, {{"num_states", table.num_states != nullptr},
                                          {"state", table.state != nullptr},
                                          {"step", table.step != nullptr}});
  const uint32_t count = table.num_states(instance.get("num_states"));
  if (count > kMostStates)
    throw plugin_error(instance.who() + " has " + std::to_string(count) + " states per parameter, at most " +
                       std::to_string(kMostStates));
  std::set<std::string, std::less<>> roles;
  for (uint32_t i = 0; i < count; ++i) {
    const chassis_state_desc_t* desc = table.state(instance.get("state"), i);
    const auto refuse = [&](const std::string& what) {
      return plugin_error(instance.who() + ": state " + std::to_string(i) + " " + what);
    };
    if (!desc) throw refuse("has no description");
    if (!desc->role.ptr || desc->role.len == 0 || desc->role.len > 128) throw refuse("has no role, which names it on disk");
    const std::string role(view_of(desc->role));
    const bool plain = std::all_of(role.begin(), role.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    if (!plain) throw refuse("has the role '" + printable(role) + "', expected letters, digits and '_'");
    if (!roles.insert(role).second) throw refuse("has the role '" + role + "' of another state");
    if (size_bytes(static_cast<Dtype>(desc->dtype)) == 0)
      throw refuse("('" + role + "') has dtype " + std::to_string(desc->dtype) + ", which is none of the ABI's");
    if (desc->shape != CHASSIS_STATE_LIKE_PARAMETER && desc->shape != CHASSIS_STATE_SCALAR)
      throw refuse("('" + role + "') has shape " + std::to_string(desc->shape) + ", expected 1 (like the parameter) or 2 (scalar)");
    if (desc->granularity > CHASSIS_GRANULARITY_MATRIX)
      throw refuse("('" + role + "') has granularity " + std::to_string(desc->granularity) + ", expected 1, 2 or 3");
    if (desc->granularity == CHASSIS_GRANULARITY_BLOCK && desc->block < 1)
      throw refuse("('" + role + "') is cut in blocks of " + std::to_string(desc->block) + " elements, expected at least 1");
  }
}

}  // namespace

OptimizerDriver::OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay)
    : instance_(std::move(instance)), table_(&instance_->interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID)) {
  check_schema(*instance_, *table_);
  num_states_ = table_->num_states(instance_->get("num_states"));
  for (const auto& parameter : parameters.all()) {
    if (!parameter->trainable) continue;
    trained_.push_back(parameter.get());
    weight_decay_.push_back(parameter->descriptor.global_shape.ndim() >= 2 ? weight_decay : 0.0);
    for (uint32_t i = 0; i < num_states_; ++i) {
      const chassis_state_desc_t* desc = table_->state(instance_->get("state"), i);
      if (!desc) throw plugin_error(instance_->who() + ": state " + std::to_string(i) + " has no description");
      std::string role(view_of(desc->role));
      states_.push_back({parameter.get(), role, state_descriptor(*parameter, *desc, role), {}});
    }
  }
}

void OptimizerDriver::allocate(Device device) {
  MemoryTag tag(MemoryCategory::kOptimizer);
  for (OptimizerState& state : states_) {
    const bool like_parameter = state.descriptor.global_shape == state.parameter->descriptor.global_shape;
    const std::vector<int64_t> scalar = {1};
    const Device home = state.parameter->offloaded ? device.host() : device;
    state.tensor = Tensor::zeros(like_parameter ? state.parameter->shard.sizes() : scalar, state.descriptor.dtype, home);
  }
}

void OptimizerDriver::step(int64_t step, double lr, double grad_scale) {
  std::vector<Device> devices;  // offloaded shards are stepped where they are
  for (const Parameter* p : trained_)
    if (std::find(devices.begin(), devices.end(), p->shard.device()) == devices.end()) devices.push_back(p->shard.device());
  for (Device device : devices) step_on(device, step, lr, grad_scale);
}

void OptimizerDriver::step_on(Device device, int64_t step, double lr, double grad_scale) {
  std::vector<chassis_tensor_t> params, grads, states;
  std::vector<double> weight_decay;
  for (size_t i = 0; i < trained_.size(); ++i) {
    Parameter* p = trained_[i];
    // A rank may store nothing of a small tensor.
    if (p->shard.num_elements() == 0 || p->shard.device() != device) continue;
    Tensor& gradient = p->reduced ? p->reduced : p->gradient;
    if (!p->step_gradient()) {  // nothing was written: it counts as zero
      MemoryTag tag(MemoryCategory::kGradients);
      gradient = Tensor::zeros(p->shard.sizes(), Dtype::f32, device);
    }
    params.push_back(p->shard.handle());
    grads.push_back(gradient.handle());
    weight_decay.push_back(weight_decay_[i]);
    for (uint32_t j = 0; j < num_states_; ++j) states.push_back(states_[i * num_states_ + j].tensor.handle());
  }
  if (params.empty()) return;
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
  MemoryTag tag(MemoryCategory::kWorkspace);
  instance_->check(table_->step(instance_->get("step"), &args));
}

double sum_of_squares(const std::vector<Parameter*>& parameters) {
  double sum = 0.0;
  for (const Parameter* p : parameters)
    if (p->owned && p->step_gradient()) sum += p->step_gradient().sum_of_squares();
  return sum;
}

}  // namespace chassis
