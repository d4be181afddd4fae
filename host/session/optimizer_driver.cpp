// Reads the schema of an optimizer plugin, allocates its states, and calls its step.
#include "host/session/optimizer_driver.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/plugin/sized.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

constexpr uint32_t kMostStates = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_blocks(const chassis_state_desc_t& desc) {
  return desc.granularity == CHASSIS_GRANULARITY_BLOCK || desc.shape == CHASSIS_STATE_PER_BLOCK;
}

// Checks the plugin's description of one state. The role becomes part of a name on disk.
void check_state(const Instance& instance, uint32_t index, const chassis_state_desc_t& desc) {
  const auto refuse = [&](const std::string& what) {
    return plugin_error(instance.label() + ": state " + std::to_string(index) + " " + what);
  };
  if (!desc.role.ptr || desc.role.len == 0 || desc.role.len > 128) throw refuse("has no role, which names it on disk");
  const std::string role(view_of(desc.role));
  const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (!std::all_of(role.begin(), role.end(), is_plain))
    throw refuse("has the role '" + printable(role) + "', expected letters, digits and '_'");
  const std::string which = "('" + role + "') ";
  if (size_bytes(static_cast<Dtype>(desc.dtype)) == 0)
    throw refuse(which + "has dtype " + std::to_string(desc.dtype) + ", which is not a dtype of the ABI");
  if (desc.shape < CHASSIS_STATE_LIKE_PARAMETER || desc.shape > CHASSIS_STATE_PER_BLOCK)
    throw refuse(which + "has shape " + std::to_string(desc.shape) +
                 ", expected 1 (like the parameter), 2 (scalar) or 3 (per block)");
  if (desc.granularity < CHASSIS_GRANULARITY_ELEMENT || desc.granularity > CHASSIS_GRANULARITY_MATRIX)
    throw refuse(which + "has granularity " + std::to_string(desc.granularity) + ", expected 1, 2 or 3");
  if (has_blocks(desc) && desc.block < 1)
    throw refuse(which + "is cut in blocks of " + std::to_string(desc.block) + " elements, expected at least 1");
}

}  // namespace

OptimizerDriver::OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay)
    : instance_(std::move(instance)),
      table_(&instance_->interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID)),
      parameters_(parameters) {
  read_schema();
  for (const auto& parameter : parameters.all()) {
    if (!parameter->trainable) continue;
    trained_.push_back(parameter.get());
    weight_decay_.push_back(parameter->descriptor.global_shape.ndim() >= 2 ? weight_decay : 0.0);
    parameter->descriptor.granularity = granularity_;
  }
  place();
}

// The schema decides what is allocated, divided and saved, so all of it is checked.
void OptimizerDriver::read_schema() {
  instance_->require(CHASSIS_OPTIMIZER_ID, {{"num_states", table_->num_states != nullptr},
                                            {"state", table_->state != nullptr},
                                            {"step", table_->step != nullptr}});
  const uint32_t num_states = table_->num_states(instance_->get("num_states"));
  if (num_states > kMostStates)
    throw plugin_error(instance_->label() + " has " + std::to_string(num_states) + " states per parameter, at most " +
                       std::to_string(kMostStates));
  std::set<std::string, std::less<>> roles;
  for (uint32_t i = 0; i < num_states; ++i) {
    const chassis_state_desc_t desc =
        read_struct(table_->state(instance_->get("state"), i),
                    instance_->label() + ": the description of state " + std::to_string(i));
    check_state(*instance_, i, desc);
    const std::string role(view_of(desc.role));
    if (!roles.insert(role).second)
      throw plugin_error(instance_->label() + ": state " + std::to_string(i) + " has the role '" + role +
                         "' of another state");
    if (desc.granularity == CHASSIS_GRANULARITY_MATRIX) granularity_ = Granularity::matrix();
    if (has_blocks(desc) && granularity_.kind != Granularity::Kind::kMatrix)
      granularity_ = Granularity::block_of(std::lcm(granularity_.block, desc.block));
    schema_.push_back(desc);
  }
}

void OptimizerDriver::place() {
  states_.clear();
  for (Parameter* parameter : trained_)
    for (const chassis_state_desc_t& desc : schema_)
      states_.push_back({parameter, std::string(view_of(desc.role)), desc.shape, describe(*parameter, desc), {}});
}

Descriptor OptimizerDriver::describe(const Parameter& parameter, const chassis_state_desc_t& desc) const {
  const Descriptor& whole = parameter.descriptor;
  const std::string fqn = parameter.name + "." + std::string(view_of(desc.role));
  Descriptor out = whole;
  out.fqn = fqn;
  out.dtype = static_cast<Dtype>(desc.dtype);
  if (desc.shape == CHASSIS_STATE_LIKE_PARAMETER) return out;
  const bool is_scalar = desc.shape == CHASSIS_STATE_SCALAR;
  const int64_t count = is_scalar ? 1 : ceil_div(numel(whole.global_shape), desc.block);
  out = Descriptor::plain(fqn, out.dtype, Shape{count});
  out.owner = whole.owner;
  for (const Placement& placement : whole.placements) {
    if (placement.kind == Placement::Kind::kOnlyOn) {
      out.placements.push_back(placement);
    } else if (!is_scalar) {
      CHASSIS_CHECK(placement == Placement::flat_range(placement.axes), fqn + ": blocks are cut as flat ranges");
      out.placements.push_back(placement);
      out.granularity = Granularity::block_of(whole.granularity.block / desc.block);
    }
  }
  return out;
}

void OptimizerDriver::allocate(Device device) {
  MemoryTag tag(MemoryCategory::kOptimizer);
  for (OptimizerState& state : states_) {
    const Device home = state.parameter->offloaded ? device.host() : device;
    const Shape wanted = Layout(state.descriptor, parameters_.mesh()).local_shape(parameters_.rank());
    const std::vector<int64_t> sizes(wanted.begin(), wanted.end()), shard = state.parameter->shard.sizes();
    if (state.shape == CHASSIS_STATE_LIKE_PARAMETER && sizes != shard)
      throw internal_error("state '" + state.descriptor.fqn + "' is " + text(Shape(shard)) + " on rank " +
                           std::to_string(parameters_.rank()) + " as its parameter is; its descriptor says " +
                           text(wanted) + " (" + state.descriptor.text() + ")");
    state.tensor = Tensor::zeros(sizes, state.descriptor.dtype, home);
  }
}

void OptimizerDriver::try_step(double lr) const {
  std::map<int, std::vector<int64_t>> shapes;
  for (const Parameter* p : trained_) {
    auto& sizes = shapes[p->descriptor.global_shape.ndim()];
    if (sizes.empty())
      for (int64_t size : p->descriptor.global_shape) sizes.push_back(std::min<int64_t>(size, 16));
  }
  std::deque<Tensor> tensors;
  std::vector<chassis_tensor_t> params, grads, states;
  const auto zeros = [&](const std::vector<int64_t>& sizes, Dtype dtype) {
    return tensors.emplace_back(Tensor::zeros(sizes, dtype)).handle();
  };
  for (const auto& [num_dims, sizes] : shapes) {
    params.push_back(zeros(sizes, Dtype::f32));
    grads.push_back(zeros(sizes, Dtype::f32));
    const int64_t elements = numel(Shape(sizes));
    for (const chassis_state_desc_t& desc : schema_) {
      const bool is_scalar = desc.shape == CHASSIS_STATE_SCALAR;
      const std::vector<int64_t> own = {is_scalar ? 1 : ceil_div(elements, std::max<int64_t>(1, desc.block))};
      states.push_back(zeros(desc.shape == CHASSIS_STATE_LIKE_PARAMETER ? sizes : own, static_cast<Dtype>(desc.dtype)));
    }
  }
  const std::vector<double> weight_decay(params.size()), lr_scale(params.size(), 1.0);
  call_step(1, lr, 1.0, params, grads, states, weight_decay, lr_scale);
}

void OptimizerDriver::step(int64_t step, double lr, double grad_scale) {
  std::vector<Device> devices;  // offloaded shards are stepped where they are
  for (const Parameter* p : trained_)
    if (std::find(devices.begin(), devices.end(), p->shard.device()) == devices.end())
      devices.push_back(p->shard.device());
  for (Device device : devices) {
    if (device.type == Device::Type::kMeta)
      rehearse_on(device);
    else
      step_on(device, step, lr, grad_scale);
  }
}

// The number of padding elements at the end of a shard of blocks. Statistics of its last block must not include them.
int64_t OptimizerDriver::block_padding(const Parameter& p) const {
  if (granularity_.kind != Granularity::Kind::kBlock) return 0;
  int64_t elements = 0;
  for (const Box& box : Layout(p.descriptor, parameters_.mesh()).boxes(parameters_.rank())) elements += numel(box);
  return p.shard.num_elements() - elements;
}

void OptimizerDriver::step_on(Device device, int64_t step, double lr, double grad_scale) {
  std::vector<chassis_tensor_t> params, grads, states;
  std::vector<double> weight_decay, lr_scale;
  std::deque<Tensor> pieces;
  for (size_t i = 0; i < trained_.size(); ++i) {
    Parameter* p = trained_[i];
    // A rank may store no element of a small tensor, or of a matrix that another rank owns.
    if (p->shard.num_elements() == 0 || p->shard.device() != device) continue;
    const int64_t padding = block_padding(*p);
    if (padding == p->shard.num_elements()) continue;
    Tensor& gradient = p->reduced ? p->reduced : p->gradient;
    if (!p->step_gradient()) {  // no backward wrote one: it counts as zero
      MemoryTag tag(MemoryCategory::kGradients);
      gradient = Tensor::zeros(p->shard.sizes(), Dtype::f32, device);
    }
    const int64_t elements = p->shard.num_elements() - padding;
    const auto add = [&](std::vector<chassis_tensor_t>& list, const Tensor& tensor, int64_t length) {
      const bool cut = padding > 0 && length < tensor.num_elements();
      list.push_back(cut ? pieces.emplace_back(tensor.narrow(0, 0, length)).handle() : tensor.handle());
    };
    add(params, p->shard, elements);
    add(grads, gradient, elements);
    weight_decay.push_back(weight_decay_[i]);
    lr_scale.push_back(p->lr_scale);
    for (size_t j = 0; j < schema_.size(); ++j) {
      const bool per_block = schema_[j].shape == CHASSIS_STATE_PER_BLOCK;
      add(states, states_[i * schema_.size() + j].tensor, per_block ? ceil_div(elements, schema_[j].block) : elements);
    }
  }
  if (!params.empty()) call_step(step, lr, grad_scale, params, grads, states, weight_decay, lr_scale);
}

Tensor OptimizerDriver::workspace(const std::vector<chassis_tensor_t>& params, Device device) const {
  if (table_->workspace_bytes == nullptr) return {};
  std::vector<int64_t> elements;
  for (const chassis_tensor_t param : params) elements.push_back(Tensor::share(param).num_elements());
  const uint64_t bytes = table_->workspace_bytes(instance_->get("workspace_bytes"), elements.data(),
                                                 static_cast<uint32_t>(elements.size()));
  if (bytes == 0) return {};
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes)}, Dtype::u8, device);
}

void OptimizerDriver::rehearse_on(Device device) const {
  std::vector<chassis_tensor_t> params;
  for (const Parameter* p : trained_)
    if (p->shard.num_elements() > 0 && p->shard.device() == device) params.push_back(p->shard.handle());
  const MemoryTag tag(MemoryCategory::kWorkspace);
  workspace(params, device);
}

void OptimizerDriver::call_step(int64_t step, double lr, double grad_scale, const std::vector<chassis_tensor_t>& params,
                                const std::vector<chassis_tensor_t>& grads, const std::vector<chassis_tensor_t>& states,
                                const std::vector<double>& weight_decay, const std::vector<double>& lr_scale) const {
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
  const bool is_scaled = std::any_of(lr_scale.begin(), lr_scale.end(), [](double factor) { return factor != 1.0; });
  args.lr_scale = is_scaled ? lr_scale.data() : nullptr;
  const MemoryTag tag(MemoryCategory::kWorkspace);
  const Device device = Tensor::share(params.front()).device();
  const Tensor scratch = workspace(params, device);
  args.stream = current_stream(device);
  args.workspace = scratch ? scratch.data() : nullptr;
  args.workspace_bytes = scratch ? scratch.num_bytes() : 0;
  instance_->check(table_->step(instance_->get("step"), &args));
}

double sum_of_squares(const std::vector<Parameter*>& parameters) {
  double sum = 0.0;
  for (const Parameter* p : parameters) {
    const Tensor gradient = p->owned ? p->step_gradient() : Tensor();
    if (!gradient) continue;
    if (gradient.device().type != Device::Type::kMeta)
      sum += gradient.sum_of_squares();
    else if (gradient.device() != kMetaHost)  // the CPU adds squares block by block, other devices as a tensor
      MemoryCharge(gradient.num_bytes(), MemoryCategory::kOptimizer, gradient.device());
  }
  return sum;
}

}  // namespace chassis
