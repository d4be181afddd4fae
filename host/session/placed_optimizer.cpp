// Asks an optimizer plugin for the states of each parameter, and describes where they are.
#include "host/session/placed_optimizer.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/plugin/status.hpp"
#include "host/session/matrix_exchange.hpp"
#include "host/session/optimizer_call.hpp"
#include "host/state/composite.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

// The coarsest granularity of the states.
Granularity granularity_of(const std::vector<chassis_state_desc_t>& states) {
  Granularity out;
  for (const chassis_state_desc_t& desc : states) {
    if (desc.granularity == CHASSIS_GRANULARITY_MATRIX) return Granularity::matrix();
    if (has_blocks(desc)) out = Granularity::block_of(std::lcm(out.block, desc.block));
  }
  return out;
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

// Throws if the plugin sums over parameters, and its step would need a call for each round of matrices.
void refuse_sums_of_rounds(const OptimizerPlugin& plugin, const std::vector<MatrixRound>& rounds) {
  if (!plugin.sums() || rounds.empty()) return;
  throw config_error(plugin.label() + " sums over all parameters, and its states need whole matrices: axis '" +
                     rounds.front().axis + "' divides parameter '" + rounds.front().matrices.front()->name +
                     "', so that a rank would step some matrices after others")
      .hint("set " + mesh_key(rounds.front().axis) + " = 1, or choose another optimizer");
}

// A state with a value for each block, as a component that is divided like its parameter.
Component per_block(const chassis_state_desc_t& desc) {
  Component out = Component::per_unit("." + std::string(view_of(desc.role)), static_cast<Dtype>(desc.dtype),
                                      std::max<int64_t>(1, desc.block), 1);
  out.form = Component::Form::kVector;
  return out;
}

// The descriptor of a state of a parameter that has the descriptor `whole`.
Descriptor describe(const std::string& name, const Descriptor& whole, const chassis_state_desc_t& desc) {
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

}  // namespace

OptimizerSchema::OptimizerSchema(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay)
    : instance_(std::move(instance)), plugin_(*instance_), table_(&parameters) {
  for (const auto& parameter : parameters.all()) {
    if (!parameter->trainable) continue;
    const Shape& shape = parameter->descriptor.global_shape;
    std::vector<chassis_state_desc_t> states =
        plugin_.states(SteppedParameter(parameter->name, parameter->role, shape));
    parameter->granularity = parameter->descriptor.granularity = granularity_of(states);
    refuse_divided_granularity(*parameter);
    if (is_stepped_whole(*parameter)) parameter->descriptor.granularity = Granularity::element();
    trained_parameters_.push_back(parameter.get());
    trained_.push_back({parameter.get(), shape.ndim() >= 2 ? weight_decay : 0.0, std::move(states)});
  }
  refuse_sums_of_rounds(plugin_, matrix_rounds(trained_parameters_, parameters.mesh()));
}

void OptimizerSchema::try_step(double lr) const {
  std::map<std::pair<int, uint32_t>, Shape> shapes;  // by number of dims and role
  for (const Parameter* p : trained_parameters_) {
    Shape small = p->descriptor.global_shape;
    for (int k = 0; k < small.ndim(); ++k) small[k] = std::min<int64_t>(small[k], 16);
    shapes.emplace(std::pair(small.ndim(), p->role), small);
  }
  std::deque<Tensor> tensors;
  std::deque<SteppedParameter> facts;
  OptimizerCall call;
  const auto filled = [&](const Shape& shape, Dtype dtype, double value) {
    Tensor& tensor = tensors.emplace_back(Tensor::zeros(std::vector<int64_t>(shape.begin(), shape.end()), dtype));
    if (value != 0) tensor.fill(value);
    return tensor.handle();
  };
  for (const auto& [key, shape] : shapes) {
    const SteppedParameter& fact = facts.emplace_back("tried", key.second, shape, std::vector{Box::whole(shape)});
    const auto states = plugin_.states(SteppedParameter("tried", key.second, shape));
    call.params.push_back(filled(shape, Dtype::f32, 0));
    call.grads.push_back(filled(shape, Dtype::f32, 0));
    call.facts.push_back(fact.raw());
    call.num_states.push_back(static_cast<uint32_t>(states.size()));
    for (const chassis_state_desc_t& desc : states) {
      const int64_t block = std::max<int64_t>(1, desc.block);
      const int64_t count = desc.shape == CHASSIS_STATE_SCALAR ? 1 : (numel(shape) + block - 1) / block;
      const bool like_parameter = desc.shape == CHASSIS_STATE_LIKE_PARAMETER;
      call.states.push_back(
          filled(like_parameter ? shape : Shape{count}, static_cast<Dtype>(desc.dtype), desc.initial));
    }
  }
  call.weight_decay.assign(call.params.size(), 0.0);
  call.lr_scale.assign(call.params.size(), 1.0);
  call.counts.assign(call.params.size(), 1);
  if (!call.params.empty()) call.run(plugin_, 1, lr, 1.0, Device{});
}

PlacedOptimizer::PlacedOptimizer(OptimizerSchema schema)
    : schema_(std::move(schema)), rounds_(matrix_rounds(schema_.parameters(), schema_.table().mesh())) {
  std::map<const Parameter*, int> owners;
  for (const MatrixRound& round : rounds_)
    for (size_t i = 0; i < round.matrices.size(); ++i) owners[round.matrices[i]] = static_cast<int>(i);
  for (const OptimizerSchema::Trained& trained : schema_.trained()) {
    const auto owner = owners.find(trained.parameter);
    const Placed& placed =
        placed_.emplace_back(Placed{&trained, states_.size(), owner == owners.end() ? -1 : owner->second});
    const Descriptor stepped = placed.descriptor();
    for (const chassis_state_desc_t& desc : trained.states)
      states_.push_back({trained.parameter,
                         std::string(view_of(desc.role)),
                         desc.shape,
                         desc.initial,
                         per_block(desc),
                         describe(trained.parameter->name, stepped, desc),
                         {}});
  }
}

Descriptor PlacedOptimizer::Placed::descriptor() const {
  return owner < 0 ? parameter().descriptor : undivided(parameter(), owner);
}

}  // namespace chassis
