// Asks an optimizer plugin for the states of each parameter, allocates them, and calls its step.
#include "host/session/optimizer_driver.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/plugin/status.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "host/service/tensor.hpp"
#include "host/state/composite.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The coarsest granularity of the states.
Granularity granularity_of(const std::vector<chassis_state_desc_t>& states) {
  Granularity out;
  for (const chassis_state_desc_t& desc : states) {
    if (desc.granularity == CHASSIS_GRANULARITY_MATRIX) return Granularity::matrix();
    if (has_blocks(desc)) out = Granularity::block_of(std::lcm(out.block, desc.block));
  }
  return out;
}

// Whether one of the ranks that have a part of the matrix steps all of it.
bool is_stepped_whole(const Parameter& p) {
  return p.granularity.kind == Granularity::Kind::kMatrix && !dividing_axis(p).empty();
}

// Throws if the layout pass cut a block or matrix of the undivided parameter that must stay whole.
void refuse_divided_granularity(const Parameter& p) {
  const Descriptor& d = p.descriptor;
  if (d.granularity.kind == Granularity::Kind::kElement || d.placements.empty() || is_stepped_whole(p)) return;
  const Shape part(p.local_shape);
  const bool is_matrix = d.granularity.kind == Granularity::Kind::kMatrix;
  const int dim = is_matrix ? d.placements.front().dim : dim_cut_within_blocks(d, part, d.granularity.block);
  if (dim < 0) return;
  const std::string& axis = d.placements.front().axes.front();
  throw config_error(
      "parameter '" + d.fqn + "' " + text(d.global_shape) + " is divided along '" + axis + "' into parts of " +
      std::to_string(part[dim]) + " in dim " + std::to_string(dim) + ", but its optimizer needs " +
      (is_matrix ? "the whole of it" : "whole blocks of " + std::to_string(d.granularity.block) + " elements"))
      .hint("choose an optimizer with a state for each element, such as adamw, " +
            std::string(is_matrix ? "" : "or its options that keep smaller parameters whole, ") + "or set " +
            mesh_key(axis) + " = 1");
}

// A state with a value for each block, as a component that is divided like its parameter.
Component per_block(const chassis_state_desc_t& desc) {
  Component out = Component::per_unit("." + std::string(view_of(desc.role)), static_cast<Dtype>(desc.dtype),
                                      std::max<int64_t>(1, desc.block), 1);
  out.form = Component::Form::kVector;
  return out;
}

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

OptimizerDriver::OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay)
    : instance_(std::move(instance)), plugin_(*instance_), parameters_(parameters) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->trainable) continue;
    const Shape& shape = parameter->descriptor.global_shape;
    SteppedParameter facts(parameter->name, parameter->role, shape);
    States schema = plugin_.states(facts);
    parameter->granularity = parameter->descriptor.granularity = granularity_of(schema);
    refuse_divided_granularity(*parameter);
    if (is_stepped_whole(*parameter)) parameter->descriptor.granularity = Granularity::element();
    trained_parameters_.push_back(parameter.get());
    trained_.push_back(
        {parameter.get(), shape.ndim() >= 2 ? weight_decay : 0.0, std::move(schema), 0, std::move(facts), -1});
  }
  place();
}

void OptimizerDriver::place() {
  choose_owners();
  refuse_several_calls();
  states_.clear();
  for (Trained& trained : trained_) {
    Parameter& p = *trained.parameter;
    const Descriptor stepped = stepped_descriptor(trained);
    trained.first_state = states_.size();
    for (const chassis_state_desc_t& desc : trained.schema)
      states_.push_back({&p,
                         std::string(view_of(desc.role)),
                         desc.shape,
                         desc.initial,
                         per_block(desc),
                         describe(p.name, stepped, desc),
                         {}});
    take_boxes(trained, stepped);
  }
}

Descriptor OptimizerDriver::stepped_descriptor(const Trained& trained) {
  const Parameter& p = *trained.parameter;
  return trained.owner < 0 ? p.descriptor : undivided(p, trained.owner);
}

void OptimizerDriver::take_boxes(Trained& trained, const Descriptor& stepped) const {
  const Parameter& p = *trained.parameter;
  trained.facts = SteppedParameter(p.name, p.role, p.descriptor.global_shape,
                                   Layout(stepped, parameters_.mesh()).boxes(parameters_.rank()));
}

void OptimizerDriver::refuse_several_calls() const {
  if (!plugin_.sums()) return;
  if (!divided_.empty())
    throw config_error(plugin_.label() + " sums over all parameters, and its states need whole matrices: axis '" +
                       divided_.front().axis + "' divides parameter '" +
                       divided_.front().matrices.front()->parameter->name +
                       "', so that a rank would step some matrices after others")
        .hint("set " + mesh_key(divided_.front().axis) + " = 1, or choose another optimizer");
  const auto offloaded = [](const Parameter* p) { return p->offloaded; };
  const auto found = std::ranges::find_if(trained_parameters_, offloaded);
  if (found != trained_parameters_.end() && !std::ranges::all_of(trained_parameters_, offloaded) &&
      device_.host() != device_)
    throw config_error(plugin_.label() + " sums over all parameters, but only some of them, such as '" +
                       (*found)->name + "', are stepped in host memory")
        .hint("offload all parameters or none");
}

void OptimizerDriver::release() {
  for (Round& round : divided_) round.exchange.reset();
  for (OptimizerState& state : states_)
    if (state.parameter->is_here || (state.tensor && state.tensor.num_elements() > 0)) state.tensor.reset();
}

void OptimizerDriver::place_rank() {
  for (Trained& trained : trained_)
    if (trained.parameter->is_here) take_boxes(trained, stepped_descriptor(trained));  // others are not stepped
}

// A class contains the matrices that the same axis divides and that have the same placements on the other axes. So the
// ranks that hold parts of one hold parts of all. The ranks own the matrices in turn, the largest first. Each round has
// one matrix for each rank of the axis, and steps them at the same time.
void OptimizerDriver::choose_owners() {
  divided_.clear();
  std::map<std::string, std::vector<Trained*>> classes;
  for (Trained& trained : trained_) {
    const Parameter& p = *trained.parameter;
    trained.owner = -1;
    if (!is_stepped_whole(p)) continue;
    std::string key = dividing_axis(p);
    for (size_t i = p.num_layout_placements; i < p.descriptor.placements.size(); ++i)
      key += "\n" + p.descriptor.placements[i].text();
    classes[key].push_back(&trained);
  }
  for (auto& [key, members] : classes) {
    const auto elements = [](const Trained* t) { return numel(t->parameter->descriptor.global_shape); };
    std::stable_sort(members.begin(), members.end(),
                     [&](const Trained* a, const Trained* b) { return elements(a) > elements(b); });
    const std::string axis = dividing_axis(*members.front()->parameter);
    const auto size = static_cast<size_t>(parameters_.mesh().size(parameters_.mesh().find(axis)));
    for (size_t i = 0; i < members.size(); ++i) {
      members[i]->owner = static_cast<int>(i % size);
      if (i % size == 0) divided_.push_back({axis, {}, nullptr, nullptr});
      divided_.back().matrices.push_back(members[i]);
    }
  }
}

Descriptor OptimizerDriver::describe(const std::string& name, const Descriptor& whole,
                                     const chassis_state_desc_t& desc) {
  const std::string fqn = name + "." + std::string(view_of(desc.role));
  Descriptor out = whole;
  out.fqn = fqn;
  out.dtype = static_cast<Dtype>(desc.dtype);
  if (desc.shape == CHASSIS_STATE_LIKE_PARAMETER) return out;
  if (desc.shape == CHASSIS_STATE_PER_BLOCK) return component_descriptor(whole, per_block(desc));
  out = Descriptor::plain(fqn, out.dtype, Shape{1});
  out.owner = whole.owner;
  for (const Placement& placement : whole.placements)
    if (placement.kind == Placement::Kind::kOnlyOn) out.placements.push_back(placement);
  return out;
}

void OptimizerDriver::allocate(Device device, Communicator& communicator) {
  communicator_ = &communicator;
  device_ = device;
  refuse_several_calls();
  for (Round& round : divided_) {
    CommGroup& group = communicator.group(std::vector{round.axis});
    std::vector<Parameter*> matrices;
    for (const Trained* trained : round.matrices) matrices.push_back(trained->parameter);
    round.exchange = std::make_unique<MatrixExchange>(communicator, group, device, std::move(matrices));
    const auto rank = static_cast<size_t>(group.rank());
    round.own = rank < round.matrices.size() ? round.matrices[rank] : nullptr;
  }
  MemoryTag tag(MemoryCategory::kOptimizer);
  for (const Trained& trained : trained_)
    for (size_t j = 0; j < trained.schema.size(); ++j) {
      OptimizerState& state = states_[trained.first_state + j];
      if (state.tensor && !state.parameter->is_here) continue;  // see release()
      const Device home = state.parameter->offloaded ? device.host() : device;
      const Shape wanted = Layout(state.descriptor, parameters_.mesh()).local_shape(parameters_.rank());
      const std::vector<int64_t> sizes(wanted.begin(), wanted.end()), shard = state.parameter->shard.sizes();
      if (state.shape == CHASSIS_STATE_LIKE_PARAMETER && trained.owner < 0 && sizes != shard)
        throw internal_error("state '" + state.descriptor.fqn + "' is " + text(Shape(shard)) + " on rank " +
                             std::to_string(parameters_.rank()) + " as its parameter is; its descriptor says " +
                             text(wanted) + " (" + state.descriptor.text() + ")");
      state.tensor = Tensor::zeros(sizes, state.descriptor.dtype, home);
      if (state.shape == CHASSIS_STATE_PER_BLOCK) state.tensor = state.tensor.flat();
      if (state.initial != 0) state.tensor.fill(state.initial);
    }
}

void OptimizerDriver::Step::add(const Trained& trained, chassis_tensor_t param, chassis_tensor_t grad) {
  params.push_back(param);
  grads.push_back(grad);
  facts.push_back(trained.facts.raw());
  num_states.push_back(static_cast<uint32_t>(trained.schema.size()));
  weight_decay.push_back(trained.weight_decay);
  lr_scale.push_back(trained.parameter->lr_scale);
  counts.push_back(trained.parameter->owned);
}

void OptimizerDriver::try_step(double lr) const {
  std::map<std::pair<int, uint32_t>, Shape> shapes;  // by number of dims and role
  for (const Parameter* p : trained_parameters_) {
    Shape small = p->descriptor.global_shape;
    for (int k = 0; k < small.ndim(); ++k) small[k] = std::min<int64_t>(small[k], 16);
    shapes.emplace(std::pair(small.ndim(), p->role), small);
  }
  std::deque<Tensor> tensors;
  std::deque<SteppedParameter> facts;
  Step step;
  const auto filled = [&](const Shape& shape, Dtype dtype, double value) {
    Tensor& tensor = tensors.emplace_back(Tensor::zeros(std::vector<int64_t>(shape.begin(), shape.end()), dtype));
    if (value != 0) tensor.fill(value);
    return tensor.handle();
  };
  for (const auto& [key, shape] : shapes) {
    const SteppedParameter& fact = facts.emplace_back("tried", key.second, shape, std::vector{Box::whole(shape)});
    const States schema = plugin_.states(SteppedParameter("tried", key.second, shape));
    step.params.push_back(filled(shape, Dtype::f32, 0));
    step.grads.push_back(filled(shape, Dtype::f32, 0));
    step.facts.push_back(fact.raw());
    step.num_states.push_back(static_cast<uint32_t>(schema.size()));
    for (const chassis_state_desc_t& desc : schema) {
      const int64_t count =
          desc.shape == CHASSIS_STATE_SCALAR ? 1 : ceil_div(numel(shape), std::max<int64_t>(1, desc.block));
      const bool like_parameter = desc.shape == CHASSIS_STATE_LIKE_PARAMETER;
      step.states.push_back(
          filled(like_parameter ? shape : Shape{count}, static_cast<Dtype>(desc.dtype), desc.initial));
    }
  }
  step.weight_decay.assign(step.params.size(), 0.0);
  step.lr_scale.assign(step.params.size(), 1.0);
  step.counts.assign(step.params.size(), 1);
  if (!step.params.empty()) call_step(1, lr, 1.0, Device{}, step);
}

void OptimizerDriver::step(int64_t step, double lr, double grad_scale) {
  std::vector<Device> devices;  // offloaded shards are stepped where they are
  for (const Parameter* p : trained_parameters_)
    if (std::find(devices.begin(), devices.end(), p->shard.device()) == devices.end())
      devices.push_back(p->shard.device());
  if (devices.empty() && plugin_.sums()) devices.push_back(device_);  // others wait for this rank in the sum
  for (Device device : devices) {
    if (device.type == Device::Type::kMeta)
      rehearse_on(device);
    else
      step_on(device, step, lr, grad_scale);
    step_divided_on(device, step, lr, grad_scale);
  }
}

// A round steps one matrix on each rank of the axis.
void OptimizerDriver::step_divided_on(Device device, int64_t number, double lr, double grad_scale) const {
  for (const Round& round : divided_) {
    const Tensor& shard = round.matrices.front()->parameter->shard;
    if (shard.num_elements() == 0 || shard.device() != device) continue;  // other ranks have the parts of this class
    const MemoryTag tag(MemoryCategory::kWorkspace);
    const MatrixExchange::Whole whole = round.exchange->collect();
    if (round.own != nullptr) {
      Step step;
      step.add(*round.own, whole.param.handle(), whole.grad.handle());
      for (size_t j = 0; j < round.own->schema.size(); ++j)
        step.states.push_back(states_[round.own->first_state + j].tensor.handle());
      if (device.type == Device::Type::kMeta)
        workspace(step, device);
      else
        call_step(number, lr, grad_scale, device, step);
    }
    round.exchange->spread(whole.param);
  }
}

// The number of padding elements at the end of a shard of blocks. Statistics of its last block must exclude them.
int64_t OptimizerDriver::block_padding(const Parameter& p) const {
  if (p.descriptor.granularity.kind != Granularity::Kind::kBlock) return 0;
  int64_t elements = 0;
  for (const Box& box : Layout(p.descriptor, parameters_.mesh()).boxes(parameters_.rank())) elements += numel(box);
  return p.shard.num_elements() - elements;
}

void OptimizerDriver::step_on(Device device, int64_t number, double lr, double grad_scale) {
  Step step;
  step.communicator = communicator_;
  std::deque<Tensor> pieces;
  for (const Trained& trained : trained_) {
    Parameter* p = trained.parameter;
    // A rank may store no element of a small tensor, or of a matrix that another rank owns.
    if (trained.owner >= 0 || p->shard.num_elements() == 0 || p->shard.device() != device) continue;
    const int64_t padding = block_padding(*p);
    if (padding == p->shard.num_elements()) continue;
    Tensor& gradient = p->reduced ? p->reduced : p->gradient;
    if (!p->step_gradient()) {  // no backward wrote one: it counts as zero
      MemoryTag tag(MemoryCategory::kGradients);
      gradient = Tensor::zeros(p->shard.sizes(), Dtype::f32, device);
    }
    const int64_t elements = p->shard.num_elements() - padding;
    const auto first = [&](const Tensor& tensor, int64_t length) {
      const bool cut = padding > 0 && length < tensor.num_elements();
      return cut ? pieces.emplace_back(tensor.flat().narrow(0, 0, length)).handle() : tensor.handle();
    };
    step.add(trained, first(p->shard, elements), first(gradient, elements));
    for (size_t j = 0; j < trained.schema.size(); ++j) {
      const chassis_state_desc_t& desc = trained.schema[j];
      const bool per_block = desc.shape == CHASSIS_STATE_PER_BLOCK;
      step.states.push_back(
          first(states_[trained.first_state + j].tensor, per_block ? ceil_div(elements, desc.block) : elements));
    }
  }
  if (!step.params.empty() || plugin_.sums()) call_step(number, lr, grad_scale, device, step);
}

Tensor OptimizerDriver::workspace(const Step& step, Device device) const {
  const uint64_t bytes = plugin_.workspace_bytes(step.facts);
  if (bytes == 0) return {};
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes)}, Dtype::u8, device);
}

void OptimizerDriver::rehearse_on(Device device) const {
  Step step;
  for (const Trained& trained : trained_) {
    const Tensor& shard = trained.parameter->shard;
    if (trained.owner >= 0 || shard.num_elements() == 0 || shard.device() != device) continue;
    step.params.push_back(shard.handle());
    step.facts.push_back(trained.facts.raw());
  }
  const MemoryTag tag(MemoryCategory::kWorkspace);
  if (!step.params.empty()) workspace(step, device);
}

void OptimizerDriver::call_step(int64_t number, double lr, double grad_scale, Device device, const Step& step) const {
  chassis_optimizer_step_t args{};
  args.struct_size = sizeof(args);
  args.num_tensors = static_cast<uint32_t>(step.params.size());
  args.step = number;
  args.lr = lr;
  args.grad_scale = grad_scale;
  args.params = step.params.data();
  args.grads = step.grads.data();
  args.states = step.states.data();
  args.weight_decay = step.weight_decay.data();
  const bool is_scaled = std::any_of(step.lr_scale.begin(), step.lr_scale.end(), [](double f) { return f != 1.0; });
  args.lr_scale = is_scaled ? step.lr_scale.data() : nullptr;
  args.num_states = step.num_states.data();
  args.parameters = step.facts.data();
  const MemoryTag tag(MemoryCategory::kWorkspace);
  const Tensor scratch = workspace(step, device);
  args.stream = current_stream(device);
  args.workspace = scratch ? scratch.data() : nullptr;
  args.workspace_bytes = scratch ? scratch.num_bytes() : 0;
  SumOverParameters sums{step.communicator, step.counts};
  if (plugin_.sums()) sums.offer(args);
  plugin_.step(args);
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
