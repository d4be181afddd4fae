// Turns the answers of the strategies into placements.
#include "host/parallel/stack_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/parallel/axis_names.hpp"

namespace chassis {

StackPlan::StackPlan(const std::shared_ptr<Strategies>& strategies, const Program& program,
                     const ParameterTable& parameters, StackContext facts)
    : strategies_(strategies),
      facts_(std::move(facts)),
      answers_(ask_strategies(*strategies, program, parameters, facts_)) {
  for (size_t i = 0; i < answers_.placements.size(); ++i) {
    answers_.placements[i].partial_over = parameters.all()[i]->partial_over;
    places_any_ |= answers_.placements[i].is_placed();
  }
  place_rank();
  if (!places_any_) return;
  divide_over_context(parameters);
  respect_granularity(parameters);
  find_replicas(parameters);
}

StackPlan StackPlan::at_rank(int rank, const std::shared_ptr<Strategies>& strategies, const Program& program,
                             const ParameterTable& parameters) const {
  CHASSIS_CHECK(strategies->size() == strategies_->size(), "a plan moves with its own strategies");
  StackPlan out = *this;
  out.facts_.rank = rank;
  out.answers_.here = repeat_questions(*strategies, program, parameters, out.facts_, answers_);
  out.strategies_ = strategies;
  out.place_rank();
  return out;
}

bool StackPlan::serves(size_t strategy, const std::string& axis) const {
  return contains(answers_.axes[strategy], axis);
}

int StackPlan::num_ways(const ShardRule& rule) const {
  int ways = 1;
  for (const std::string& axis : rule.axes) ways *= facts_.mesh.size(facts_.mesh.find(axis));
  return ways;
}

// Ranks that divide positions have the same parameters and each a part of their gradients, just as ranks that divide
// the batch do. So strategies divide and reduce parameters over both kinds of axes; except over one along which the
// layout has divided the parameter already, as that of experts may: its ranks have different elements.
void StackPlan::divide_over_context(const ParameterTable& parameters) {
  std::vector<std::string> context;
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1 && divides_positions(axis.name)) context.push_back(axis.name);
  shard_axes_ = answers_.data_axes;
  shard_axes_.insert(shard_axes_.end(), context.begin(), context.end());
  for (size_t i = 0; i < answers_.placements.size(); ++i) {
    ParameterPlacement& placement = answers_.placements[i];
    const Parameter& p = *parameters.all()[i];
    if (!placement.is_placed()) continue;
    std::vector<std::string>& axes = placement.rule.axes;
    if (placement.rule.kind != CHASSIS_SHARD_REPLICATE) axes.insert(axes.end(), context.begin(), context.end());
    std::erase_if(axes, [&](const std::string& axis) { return p.is_divided_along(axis); });
    if (axes.empty()) placement.rule.kind = CHASSIS_SHARD_REPLICATE;
    std::erase_if(placement.partial_over, [&](const std::string& axis) { return contains(context, axis); });
  }
}

// The optimizer decides where strategies may cut, because its states are divided like the parameters. Whole matrices,
// the largest first, go to the coordinate that owns the fewest elements so far; every rank computes the same owners.
void StackPlan::respect_granularity(const ParameterTable& parameters) {
  using Kind = Granularity::Kind;
  std::vector<ParameterPlacement>& placements = answers_.placements;
  std::vector<size_t> matrices;
  for (size_t i = 0; i < placements.size(); ++i) {
    ShardRule& rule = placements[i].rule;
    const Granularity& granularity = parameters.all()[i]->granularity;
    if (granularity.kind == Kind::kElement || rule.kind == CHASSIS_SHARD_REPLICATE) continue;
    if (num_ways(rule) == 1) {
      rule.kind = CHASSIS_SHARD_REPLICATE;
    } else if (granularity.kind == Kind::kBlock) {
      rule.kind = CHASSIS_SHARD_FLAT;
      rule.block = granularity.block;
    } else {
      matrices.push_back(i);
    }
  }
  const auto elements = [&](size_t i) { return numel(Shape(parameters.all()[i]->local_shape)); };
  std::stable_sort(matrices.begin(), matrices.end(), [&](size_t a, size_t b) { return elements(a) > elements(b); });
  // By axes and pipeline coordinate: the elements that each coordinate along the axes owns so far, and that coordinate.
  std::map<std::pair<std::vector<std::string>, int>, std::multimap<int64_t, int>> owned;
  for (const size_t i : matrices) {
    ShardRule& rule = placements[i].rule;
    const std::vector<int>& readers = placements[i].coordinates;
    auto& coordinates = owned[{rule.axes, readers.empty() ? 0 : readers.front()}];
    if (coordinates.empty())
      for (int c = 0; c < num_ways(rule); ++c) coordinates.emplace_hint(coordinates.end(), 0, c);
    const auto [least, owner] = *coordinates.begin();
    coordinates.erase(coordinates.begin());
    coordinates.emplace(least + elements(i), owner);
    rule.owner = owner;
  }
}

void StackPlan::find_replicas(const ParameterTable& parameters) {
  bool offloads = false;
  for (size_t i = 0; i < answers_.placements.size(); ++i) {
    ShardRule& rule = answers_.placements[i].rule;
    for (const std::string& axis : shard_axes_)
      if (!contains(rule.axes, axis) && !parameters.all()[i]->is_divided_along(axis)) rule.replica_axes.push_back(axis);
    offloads |= rule.offload;
  }
  if (offloads && facts_.device.type == Device::Type::kCpu)
    counted_warning("offload", "offload and pin_memory have no effect: the run's device is the CPU");
}

// Finds the place of this rank in the pipeline, and among those that divide the batch.
void StackPlan::place_rank() {
  const Pipeline& pipeline = answers_.pipeline;
  stage_coordinate_ = chassis::stage_coordinate(pipeline, facts_.mesh, facts_.rank);
  num_data_ranks_ = 1;
  data_rank_ = 0;
  counts_rows_ = true;
  const auto at = facts_.mesh.coordinates(facts_.rank);
  for (int axis = 0; axis < facts_.mesh.num_axes(); ++axis) {
    const int coordinate = at[static_cast<size_t>(axis)];
    const std::string& name = facts_.mesh.axes()[static_cast<size_t>(axis)].name;
    if (!contains(answers_.data_axes, name)) {
      // The last stage has the loss.
      counts_rows_ &= coordinate == (name == pipeline.axis ? pipeline.stages().rank(pipeline.num_stages() - 1) : 0);
      continue;
    }
    num_data_ranks_ *= facts_.mesh.size(axis);
    data_rank_ = data_rank_ * facts_.mesh.size(axis) + coordinate;
  }
}

void StackPlan::place(ParameterTable& parameters) const {
  if (strategies_->empty()) return;
  parameters.place(facts_.mesh, facts_.rank);
  for (size_t i = 0; i < answers_.placements.size(); ++i) {
    const ParameterPlacement& placement = answers_.placements[i];
    Parameter& p = *parameters.all()[i];
    p.is_here = is_on(placement);
    // The layout's placements stay, and come first.
    std::vector<Placement>& placements = p.descriptor.placements;
    placements.erase(placements.begin() + static_cast<std::ptrdiff_t>(p.num_layout_placements), placements.end());
    for (Placement& own : placements_of(placement)) placements.push_back(std::move(own));
    p.descriptor.owner = places_any_ ? OwnerRule::kSpread : OwnerRule::kFirst;
    p.offloaded = placement.rule.offload;
    p.pinned = placement.rule.offload && placement.rule.pin_memory;
  }
}

// True if a unit of this rank's stages reads the parameter, or none of any stage.
bool StackPlan::is_on(const ParameterPlacement& placement) const {
  const std::vector<int>& readers = placement.coordinates;
  return readers.empty() || std::find(readers.begin(), readers.end(), stage_coordinate_) != readers.end();
}

// A parameter lies on the ranks whose stages read it. The first of them owns it; a tied one has copies on the others.
std::vector<Placement> StackPlan::placements_of(const ParameterPlacement& placement) const {
  std::vector<Placement> out;
  if (const std::vector<int>& readers = placement.coordinates; !readers.empty()) {
    out.push_back(Placement::only_on({answers_.pipeline.axis}, readers.front()));
    out.back().copies.assign(readers.begin() + 1, readers.end());
  }
  const ShardRule& rule = placement.rule;
  if (rule.owner >= 0)
    out.push_back(Placement::only_on(rule.axes, rule.owner));
  else if (rule.kind == CHASSIS_SHARD_DIM)
    out.push_back(Placement::dim_chunk(rule.axes, 0));
  else if (rule.kind == CHASSIS_SHARD_FLAT)
    out.push_back(Placement::flat_range(rule.axes));
  return out;
}

}  // namespace chassis
