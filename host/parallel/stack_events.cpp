// The work of a step: groups, events in order, and sums of gradients.
#include "host/parallel/stack_events.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/plugin/status.hpp"
#include "host/service/memory.hpp"

namespace chassis {

namespace {

// All-reduces of gradients of shards, by group.
class GradientSums {
 public:
  explicit GradientSums(const Shards& shards) : shards_(shards) {}

  // The ranks of the group store the same elements of the parameter, possibly none.
  void add(ProcessGroup& group, Parameter& p) {
    if (p.shard.num_elements() == 0) return;
    const Device device = shards_.device();
    Tensor own = p.step_gradient();
    if (!own) {  // another rank of the group may have one
      const MemoryTag tag(MemoryCategory::kGradients);
      own = p.reduced = Tensor::zeros(p.shard.sizes(), Dtype::f32, p.shard.device());
    }
    const Tensor sum = own.device() == device ? own : own.to(device);
    if (own.device() != device) offloaded_.emplace_back(own, sum);
    Collective call;
    call.send = call.recv = sum;
    auto found =
        std::find_if(by_group_.begin(), by_group_.end(), [&](const auto& other) { return other.first == &group; });
    if (found == by_group_.end()) found = by_group_.insert(found, {&group, {}});
    found->second.push_back(std::move(call));
  }
  void run(Communicator& communicator, const char* name) {
    for (auto& [group, calls] : by_group_) {
      for (Collective& call : calls) call.name = name;
      CommHandle work = communicator.start(*group, std::move(calls));
      communicator.wait(work);
    }
    for (const auto& [own, sum] : offloaded_) own.copy_from(sum);
  }

 private:
  const Shards& shards_;
  std::vector<std::pair<ProcessGroup*, std::vector<Collective>>> by_group_;  // in order of first use
  std::vector<std::pair<Tensor, Tensor>> offloaded_;                      // tensor in host memory, copy on the device
};

uint32_t bits(UnitEvents::Flags flags) {
  return (flags.recompute ? CHASSIS_EVENT_RECOMPUTE : 0) | (flags.last_microbatch ? CHASSIS_EVENT_LAST_MICROBATCH : 0) |
         (flags.training ? CHASSIS_EVENT_TRAINING : 0) | (flags.params ? 0 : CHASSIS_EVENT_INPUTS_ONLY) |
         (flags.inputs ? 0 : CHASSIS_EVENT_PARAMS_ONLY);
}

}  // namespace

StackEvents::StackEvents(const StackPlan& plan, ParameterTable& parameters, Communicator& communicator, Device device,
                         bool keeps)
    : plan_(plan), parameters_(parameters), communicator_(communicator) {
  CHASSIS_CHECK(plan.placements().size() == parameters.all().size(), "the plan is of other parameters");
  CHASSIS_CHECK(plan.strategies().empty() || (parameters.mesh() == plan.mesh() && parameters.rank() == plan.rank()),
                "the parameters are placed by another plan");
  const RankUnits& here = plan.here();
  std::vector<ShardRule> rules;
  for (const uint32_t id : here.parameters) {
    here_.push_back(parameters.all()[id].get());
    rules.push_back(plan.placements()[id].rule);
  }
  count_readers();
  shards_ = std::make_unique<Shards>(parameters, here_, std::move(rules), communicator, device);
  shards_->allocate(keeps);
  connect();
  for (const StackStrategy& s : plan.strategies().all())
    if (s.table->bind) s.instance->call("bind", [&](auto* self) { return s.table->bind(self, shards_->table()); });
}

StackEvents::~StackEvents() = default;

void StackEvents::count_readers() {
  const RankUnits& here = plan_.here();
  for (uint32_t unit = 0; unit < here.units.size(); ++unit) local_unit_[here.units[unit]] = unit;
  trained_of_unit_.resize(here.units.size());
  ready_.resize(here.parameters.size());
  for (uint32_t i = 0; i < here.parameters.size(); ++i) {
    (plan_.placements()[here.parameters[i]].is_placed() ? placed_here_ : unplaced_here_).push_back(i);
    ready_[i].num_units = static_cast<uint32_t>(here.read[i].size());
    if (!here_[i]->trainable) continue;
    for (const uint32_t unit : here.read[i]) trained_of_unit_[unit].push_back(i);
  }
}

// Forms the groups of a step in advance, in the same order on all ranks. During a step, the ranks of a pipeline are at
// different places: whichever rank came first would wait for others that wait for it.
void StackEvents::connect() {
  const Pipeline& pipeline = plan_.pipeline();
  if (!pipeline.divides()) return;
  for (const MeshAxis& axis : plan_.mesh().axes())
    if (axis.size > 1) communicator_.group(std::vector<std::string>{axis.name});
  communicator_.group({});
  links_ = std::make_unique<RankLinks>(pipeline, communicator_);
  const std::vector<ParameterPlacement>& placements = plan_.placements();
  for (const ParameterPlacement& placement : placements)
    if (!placement.partial_over.empty()) communicator_.group(placement.partial_over);
  std::map<std::vector<int>, std::vector<Parameter*>> by_coordinates;
  for (size_t i = 0; i < placements.size(); ++i)
    if (placements[i].coordinates.size() > 1 && parameters_.all()[i]->trainable)
      by_coordinates[placements[i].coordinates].push_back(parameters_.all()[i].get());
  for (auto& [coordinates, tied] : by_coordinates) {
    if (std::find(coordinates.begin(), coordinates.end(), plan_.stage_coordinate()) == coordinates.end()) continue;
    std::string key = "tied";
    for (const int coordinate : coordinates) key += "," + std::to_string(coordinate);
    copies_.push_back({&communicator_.group_on(pipeline.axis, coordinates, key), tied});
  }
}

void StackEvents::call(const StackStrategy& strategy, const UnitHook& hook, size_t unit, uint32_t which, Flags flags) {
  if (const auto function = strategy.table->*hook.function)
    strategy.instance->call(
        hook.name, [&](auto* self) { return function(self, which, bits(flags)); }, static_cast<int64_t>(unit));
}

void StackEvents::call(const StackStrategy& strategy, const StepHook& hook) {
  if (const auto function = strategy.table->*hook.function)
    strategy.instance->call(hook.name, [&](auto* self) { return function(self); });
}

// Logged between the calls of collectives, so that the log shows what was started before a unit computes.
void StackEvents::trace(const char* what, uint32_t unit) const {
  if (communicator_.logs_calls()) log::debug("unit: {} {}", what, plan_.here().unit_names[unit]);
}

std::vector<std::string> StackEvents::axes_of_differing_replicas() const {
  std::vector<std::string> out;
  for (const MeshAxis& axis : plan_.mesh().axes())
    for (size_t m = 0; m < strategies().size(); ++m) {
      const StackStrategy& strategy = strategies()[m];
      if (axis.size == 1 || !plan_.serves(m, axis.name) || strategy.table->replicas_differ == nullptr) continue;
      const bool differ = strategy.instance->call(
          "replicas_differ", [&](auto* self) { return strategy.table->replicas_differ(self, str_of(axis.name)) != 0; });
      if (differ) out.push_back(axis.name);
    }
  return out;
}

void StackEvents::pre_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_forward", &chassis_parallel_t::pre_forward};
  const uint32_t here = local_unit(unit);
  for (const StackStrategy& m : strategies().all()) call(m, kHook, here, here, flags);
  expect_gathered(unit, "begins");
  trace(flags.recompute ? "forward again" : "forward", here);
}

void StackEvents::post_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"post_forward", &chassis_parallel_t::post_forward};
  const uint32_t here = local_unit(unit);
  for (size_t m = strategies().size(); m-- > 0;) call(strategies()[m], kHook, here, here, flags);
}

void StackEvents::pre_backward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_backward", &chassis_parallel_t::pre_backward};
  const uint32_t here = local_unit(unit);
  for (const StackStrategy& m : strategies().all()) call(m, kHook, here, here, flags);
  expect_gathered(unit, "begins its backward");
  trace("backward", here);
}

void StackEvents::expect_gathered(size_t unit, const char* when) const {
  for (const Parameter* p : parameters_.of_unit(unit))
    if (!p->is_whole())
      throw plugin_error("parameter '" + p->name + "' is not gathered when unit " + std::to_string(unit) + " " + when);
}

// A tied parameter is ready when all units that read it, possibly in several chunks, have added to its gradient.
std::vector<std::pair<uint32_t, UnitEvents::Flags>> StackEvents::ready_after(uint32_t unit, Flags flags) {
  std::vector<std::pair<uint32_t, Flags>> out;
  if (!flags.params) return out;
  for (const uint32_t i : trained_of_unit_[unit]) {
    Readiness& ready = ready_[i];
    ready.num_last += flags.last_microbatch;
    if (++ready.num_done[flags.microbatch] < ready.num_units) continue;
    ready.num_done.erase(flags.microbatch);
    Flags of_parameter = flags;
    of_parameter.last_microbatch = ready.num_last == ready.num_units;
    out.emplace_back(i, of_parameter);
  }
  return out;
}

void StackEvents::post_backward(size_t unit, Flags flags) {
  constexpr UnitHook kReady = {"grad_ready", &chassis_parallel_t::grad_ready},
                     kAfter = {"post_backward", &chassis_parallel_t::post_backward};
  const uint32_t here = local_unit(unit);
  const auto ready = ready_after(here, flags);
  for (size_t m = strategies().size(); m-- > 0;) {
    for (const auto& [parameter, of_parameter] : ready) call(strategies()[m], kReady, here, parameter, of_parameter);
    call(strategies()[m], kAfter, here, here, flags);
  }
}

const StackStrategy& StackEvents::placed_by(uint32_t i) const {
  return strategies()[static_cast<size_t>(plan_.placements()[plan_.here().parameters[i]].strategy)];
}

uint32_t StackEvents::local_unit(size_t unit) const {
  const auto found = local_unit_.find(unit);
  CHASSIS_CHECK(found != local_unit_.end(), "a unit of another stage runs");
  return found->second;
}

// Sums gradients of which several ranks have a part: each computed it from its positions or heads, or from the units of
// its stage that read a tied parameter.
void StackEvents::sum_partial_gradients() {
  GradientSums sums(*shards_);
  for (size_t i = 0; i < plan_.placements().size(); ++i) {
    Parameter& p = *parameters_.all()[i];
    const std::vector<std::string>& axes = plan_.placements()[i].partial_over;
    if (!axes.empty() && p.trainable && p.is_here) sums.add(communicator_.group(axes), p);
  }
  sums.run(communicator_, "partial gradients");
  GradientSums tied(*shards_);
  for (const auto& [group, parameters] : copies_)
    for (Parameter* p : parameters) tied.add(*group, *p);
  tied.run(communicator_, "gradients of tied parameters");
}

void StackEvents::finish_grads() {
  for (const StackStrategy& m : strategies().all())
    call(m, StepHook{"finish_grads", &chassis_parallel_t::finish_grads});
  sum_partial_gradients();
  for (Readiness& ready : ready_) ready.num_last = 0, ready.num_done.clear();
  for (const uint32_t i : placed_here_)
    if (const Parameter& p = *here_[i]; p.gradient_written)
      throw plugin_error(placed_by(i).label() + ": the gradient of '" + p.name +
                         "' was not reduced by the end of the step");
}

void StackEvents::refresh() {
  shards_->mark_stale();
  shards_->gather(unplaced_here_, "");  // nothing is sent: this rank has them whole
  shards_->release(unplaced_here_);
  for (const StackStrategy& m : strategies().all())
    call(m, StepHook{"post_optimizer", &chassis_parallel_t::post_optimizer});
  if (const auto stale = shards_->stale(); !stale.empty()) {
    std::string strategy;
    for (const uint32_t i : placed_here_)
      if (here_[i]->name == stale.front()) strategy = placed_by(i).label() + ": ";
    throw plugin_error(strategy + "parameter '" + stale.front() + "' was not updated after the optimizer step");
  }
}

void StackEvents::finish_step() {
  for (const StackStrategy& m : strategies().all()) call(m, StepHook{"drain", &chassis_parallel_t::drain});
  if (links_) links_->finish();
  shards_->wait_all();
}

}  // namespace chassis
