// The work of a step: groups, events in order, and sums of gradients.
#include "host/parallel/parallel_stack.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/parallel/parallel_stack_impl.hpp"
#include "host/service/memory.hpp"

namespace chassis {

namespace {

// All-reduces of gradients of shards, by group.
class GradientSums {
 public:
  explicit GradientSums(const Shards& shards) : shards_(shards) {}

  // The ranks of the group store the same elements of the parameter, possibly none.
  void add(CommGroup& group, Parameter& p) {
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
      CommWork work = communicator.start(*group, std::move(calls));
      communicator.wait(work);
    }
    for (const auto& [own, sum] : offloaded_) own.copy_from(sum);
  }

 private:
  const Shards& shards_;
  std::vector<std::pair<CommGroup*, std::vector<Collective>>> by_group_;  // in order of first use
  std::vector<std::pair<Tensor, Tensor>> offloaded_;                      // tensor in host memory, copy on the device
};

uint32_t bits(UnitEvents::Flags flags) {
  return (flags.recompute ? CHASSIS_EVENT_RECOMPUTE : 0) | (flags.last_microbatch ? CHASSIS_EVENT_LAST_MICROBATCH : 0) |
         (flags.training ? CHASSIS_EVENT_TRAINING : 0) | (flags.params ? 0 : CHASSIS_EVENT_INPUTS_ONLY) |
         (flags.inputs ? 0 : CHASSIS_EVENT_PARAMS_ONLY);
}

}  // namespace

void ParallelStack::bind(Communicator& communicator, Device device) {
  CHASSIS_CHECK(parameters_, "resolve must be called before bind");
  communicator_ = &communicator;
  std::vector<Parameter*> here;
  std::vector<ShardRule> rules;
  for (const uint32_t id : problem_->ids) {
    here.push_back(parameters_->all()[id].get());
    rules.push_back(rules_[id]);
  }
  shards_ = std::make_unique<Shards>(*parameters_, here, std::move(rules), communicator, device);
  shards_->allocate();
  connect();
  for (const Member& m : members_)
    if (m.table->bind) m.instance->call("bind", [&](auto* self) { return m.table->bind(self, shards_->table()); });
}

// Forms the groups of a step in advance, in the same order on all ranks. During a step, the ranks of a pipeline are at
// different places: whichever rank came first would wait for others that wait for it.
void ParallelStack::connect() {
  if (!pipeline_.divides()) return;
  for (const MeshAxis& axis : facts_.mesh.axes())
    if (axis.size > 1) communicator_->group(std::vector<std::string>{axis.name});
  communicator_->group({});
  links_ = std::make_unique<RankLinks>(pipeline_, *communicator_);
  for (const auto& p : parameters_->all())
    if (!p->partial_over.empty()) communicator_->group(p->partial_over);
  copies_.clear();
  std::map<std::vector<int>, std::vector<Parameter*>> by_coordinates;
  for (size_t i = 0; i < coordinates_of_.size(); ++i)
    if (coordinates_of_[i].size() > 1 && parameters_->all()[i]->trainable)
      by_coordinates[coordinates_of_[i]].push_back(parameters_->all()[i].get());
  for (auto& [coordinates, tied] : by_coordinates) {
    if (std::find(coordinates.begin(), coordinates.end(), stage_coordinate_) == coordinates.end()) continue;
    std::string key = "tied";
    for (const int coordinate : coordinates) key += "," + std::to_string(coordinate);
    copies_.push_back({&communicator_->group_on(pipeline_.axis, coordinates, key), tied});
  }
}

void ParallelStack::call(const Member& member, const UnitHook& hook, size_t unit, uint32_t which, Flags flags) {
  if (const auto function = member.table->*hook.function)
    member.instance->call(
        hook.name, [&](auto* self) { return function(self, which, bits(flags)); }, static_cast<int64_t>(unit));
}

void ParallelStack::call(const Member& member, const StepHook& hook) {
  if (const auto function = member.table->*hook.function)
    member.instance->call(hook.name, [&](auto* self) { return function(self); });
}

// Logged between the calls of collectives, so that the log shows what was started before a unit computes.
void ParallelStack::trace(const char* what, uint32_t unit) const {
  if (communicator_ && communicator_->logs_calls()) log::debug("unit: {} {}", what, problem_->unit_texts[unit]);
}

std::vector<std::string> ParallelStack::axes_of_differing_replicas() const {
  std::vector<std::string> out;
  for (const MeshAxis& axis : facts_.mesh.axes())
    for (const Member& m : members_) {
      const bool serves = std::find(m.axes.begin(), m.axes.end(), axis.name) != m.axes.end();
      if (axis.size == 1 || !serves || m.table->replicas_differ == nullptr) continue;
      const bool differ = m.instance->call(
          "replicas_differ", [&](auto* self) { return m.table->replicas_differ(self, str_of(axis.name)) != 0; });
      if (differ) out.push_back(axis.name);
    }
  return out;
}

void ParallelStack::pre_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_forward", &chassis_parallel_t::pre_forward};
  const uint32_t here = local_unit(unit);
  for (const Member& m : members_) call(m, kHook, here, here, flags);
  expect_gathered(unit, "begins");
  trace(flags.recompute ? "forward again" : "forward", here);
}

void ParallelStack::post_forward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"post_forward", &chassis_parallel_t::post_forward};
  const uint32_t here = local_unit(unit);
  for (size_t m = members_.size(); m-- > 0;) call(members_[m], kHook, here, here, flags);
}

void ParallelStack::pre_backward(size_t unit, Flags flags) {
  constexpr UnitHook kHook = {"pre_backward", &chassis_parallel_t::pre_backward};
  const uint32_t here = local_unit(unit);
  for (const Member& m : members_) call(m, kHook, here, here, flags);
  expect_gathered(unit, "begins its backward");
  trace("backward", here);
}

void ParallelStack::expect_gathered(size_t unit, const char* when) const {
  for (const Parameter* p : parameters_->of_unit(unit))
    if (!p->is_whole())
      throw plugin_error("parameter '" + p->name + "' is not gathered when unit " + std::to_string(unit) + " " + when);
}

// A tied parameter is ready when all units that read it, possibly in several chunks, have added to its gradient.
std::vector<std::pair<uint32_t, UnitEvents::Flags>> ParallelStack::ready_after(uint32_t unit, Flags flags) {
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

void ParallelStack::post_backward(size_t unit, Flags flags) {
  constexpr UnitHook kReady = {"grad_ready", &chassis_parallel_t::grad_ready},
                     kAfter = {"post_backward", &chassis_parallel_t::post_backward};
  const uint32_t here = local_unit(unit);
  const auto ready = ready_after(here, flags);
  for (size_t m = members_.size(); m-- > 0;) {
    for (const auto& [parameter, of_parameter] : ready) call(members_[m], kReady, here, parameter, of_parameter);
    call(members_[m], kAfter, here, here, flags);
  }
}

uint32_t ParallelStack::local_unit(size_t unit) const {
  const auto found = local_unit_.find(unit);
  CHASSIS_CHECK(found != local_unit_.end(), "a unit of another stage runs");
  return found->second;
}

// Sums gradients of which several ranks have a part: each computed it from its positions or heads, or from the units of
// its stage that read a tied parameter.
void ParallelStack::sum_partial_gradients() {
  GradientSums sums(*shards_);
  for (const auto& p : parameters_->all())
    if (!p->partial_over.empty() && p->trainable && p->is_here) sums.add(communicator_->group(p->partial_over), *p);
  sums.run(*communicator_, "partial gradients");
  GradientSums tied(*shards_);
  for (const auto& [group, parameters] : copies_)
    for (Parameter* p : parameters) tied.add(*group, *p);
  tied.run(*communicator_, "gradients of tied parameters");
}

void ParallelStack::finish_grads() {
  for (const Member& m : members_) call(m, StepHook{"finish_grads", &chassis_parallel_t::finish_grads});
  sum_partial_gradients();
  for (Readiness& ready : ready_) ready.num_last = 0, ready.num_done.clear();
  for (const uint32_t i : placed_here_)
    if (const Parameter& p = local(i); p.gradient_written)
      throw plugin_error(placed_by_[problem_->ids[i]]->instance->label() + ": the gradient of '" + p.name +
                         "' was not reduced by the end of the step");
}

void ParallelStack::refresh() {
  shards_->mark_stale();
  shards_->gather(unplaced_here_, "");  // nothing is sent: this rank has them whole
  shards_->release(unplaced_here_);
  for (const Member& m : members_) call(m, StepHook{"post_optimizer", &chassis_parallel_t::post_optimizer});
  if (const auto stale = shards_->stale(); !stale.empty()) {
    std::string strategy;
    for (const uint32_t i : placed_here_)
      if (local(i).name == stale.front()) strategy = placed_by_[problem_->ids[i]]->instance->label() + ": ";
    throw plugin_error(strategy + "parameter '" + stale.front() + "' was not updated after the optimizer step");
  }
}

void ParallelStack::finish_step() {
  for (const Member& m : members_) call(m, StepHook{"drain", &chassis_parallel_t::drain});
  if (links_) links_->finish();
  shards_->wait_all();
}

}  // namespace chassis
