// Pairs the tensors of two states by name, and gives live_move() access to them.
#include "host/save/state_transfer.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/save/component_load.hpp"
#include "host/state/composite.hpp"
#include "host/state/move_order.hpp"

namespace chassis {
namespace {

std::string described(const Descriptor& d) { return std::string(dtype_name(d.dtype)) + " " + text(d.global_shape); }

// True if the shard is a slice of the whole tensor, which would stay in memory with it.
bool is_slice_of_whole(const Parameter& p) {
  return p.shard && p.value && p.value.num_elements() != p.shard.num_elements() && p.value.shares_storage_with(p.shard);
}

// True if strategies divide, gather and keep all parameters in the same way, so that their values can stay too.
bool are_placed_alike(const PlacedModel& a, const PlacedModel& b) {
  const auto &here = a.plan->placements(), &there = b.plan->placements();
  return a.mesh.shape == b.mesh.shape &&
         std::ranges::equal(here, there, [](const ParameterPlacement& p, const ParameterPlacement& q) {
           return p.rule == q.rule && p.coordinates == q.coordinates && p.partial_over == q.partial_over;
         });
}

}  // namespace

StateTransfer::Listed StateTransfer::list(RunState& state) {
  Listed out;
  const auto& parameters = state.parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (!p.is_quantized()) {
      out.descriptors.push_back(p.descriptor);
      out.places.push_back({Kind::kParameter, i});
      continue;
    }
    for (size_t c = 0; c < p.storage->components().size(); ++c) {
      out.descriptors.push_back(component_descriptor(p.descriptor, p.storage->components()[c]));
      out.places.push_back({Kind::kComponent, i, c});
    }
  }
  const std::vector<OptimizerState>& states = state.optimizer->states();
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].shape == CHASSIS_STATE_SCALAR) {
      out.scalars.push_back(i);
      continue;
    }
    out.descriptors.push_back(states[i].descriptor);
    out.places.push_back({Kind::kState, i});
  }
  return out;
}

void StateTransfer::require_alike(const Listed& from, const Listed& to) const {
  std::map<std::string, const Descriptor*> after;
  for (const Descriptor& d : to.descriptors) after[d.fqn] = &d;
  const auto refuse = [](const std::string& what) {
    throw config_error(what).hint("save, stop, and start the run again with this configuration");
  };
  for (const Descriptor& d : from.descriptors) {
    const auto found = after.find(d.fqn);
    if (found == after.end()) refuse("the run has '" + d.fqn + "', which it would not have after the swap");
    const Descriptor& then = *found->second;
    if (then.dtype != d.dtype || then.global_shape != d.global_shape)
      refuse("'" + d.fqn + "' is stored as " + described(d) + ", and after the swap as " + described(then));
    after.erase(found);
  }
  if (!after.empty()) refuse("after the swap the run has '" + after.begin()->first + "', which it does not have now");
  const auto names = [](const RunState& state, const std::vector<size_t>& scalars) {
    std::vector<std::string> out;
    for (const size_t i : scalars) out.push_back(state.optimizer->states()[i].descriptor.fqn);
    return out;
  };
  if (names(*from_.state, from.scalars) != names(*to_.state, to.scalars))
    refuse("the optimizer has other numbers for each tensor after the swap");
}

StateTransfer::StateTransfer(RunState& from, RunState& to, int rank)
    : rank_(rank == kOwnRank ? from.model.mesh.rank : rank) {
  from_.state = &from;
  to_.state = &to;
  const Listed before = list(from), after = list(to);
  require_alike(before, after);
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < after.descriptors.size(); ++i) index[after.descriptors[i].fqn] = i;
  std::vector<ReshardTensor> tensors;
  for (size_t i = 0; i < before.descriptors.size(); ++i) {
    const size_t j = index.at(before.descriptors[i].fqn);
    from_.places.push_back(before.places[i]);
    to_.places.push_back(after.places[j]);
    tensors.push_back(
        {Layout(before.descriptors[i], from.model.mesh.shape), Layout(after.descriptors[j], to.model.mesh.shape)});
  }
  scalars_ = before.scalars;
  const std::vector<MovedItem> items = moved_items(tensors);
  for (size_t i = 0; i < items.size(); ++i) {
    in_place_.push_back(items[i].in_place);
    rehoused_.push_back(items[i].in_place && parameter(from_, i).offloaded != parameter(to_, i).offloaded);
    for (const auto& bytes : {items[i].before, items[i].after})
      for (const int64_t b : bytes) largest_bytes_ = std::max(largest_bytes_, static_cast<uint64_t>(b));
  }
  for (const int64_t bytes : order_moves(items).floor) floor_bytes_.push_back(static_cast<uint64_t>(bytes));
  plan_ = plan_move(std::move(tensors));
}

// Little more may exist at a time than the larger layout has and its largest tensor.
LiveMovePlan StateTransfer::plan_move(std::vector<ReshardTensor> tensors) const {
  return plan_live_move(std::move(tensors), {.bucket_bytes = kBucketBytes, .room_bytes = kBucketBytes}, rank_);
}

Parameter& StateTransfer::parameter(const Side& side, size_t tensor) {
  const Place& place = side.places[tensor];
  if (place.kind == Kind::kState) return *side.state->optimizer->states()[place.index].parameter;
  return *side.state->parameters().all()[place.index];
}

Tensor StateTransfer::tensor(const Side& side, size_t tensor, const Layout& layout) {
  const Place& place = side.places[tensor];
  Parameter& p = parameter(side, tensor);
  if (place.kind == Kind::kParameter) return p.shard;
  const Tensor held = place.kind == Kind::kComponent ? p.components[place.component].shard
                                                     : side.state->optimizer->states()[place.index].tensor;
  return as_described(held, layout.descriptor(), layout.mesh(), side.state->model.mesh.rank);
}

void StateTransfer::allocate(Side& side, size_t tensor) {
  const Place& place = side.places[tensor];
  Parameter& p = parameter(side, tensor);
  const Device device = side.state->device();
  const ParameterTable& table = side.state->parameters();
  if (place.kind == Kind::kState) {
    OptimizerDriver::allocate_state(side.state->optimizer->states()[place.index], table, device);
    return;
  }
  // All components of a parameter are made with the first one that arrives.
  const bool is_there = place.kind == Kind::kComponent ? !!p.components[place.component].shard : !!p.shard;
  if (!is_there || (place.kind == Kind::kParameter && !p.is_here)) table.allocate_one(p, device);
}

void StateTransfer::release(Side& side, size_t tensor) {
  const Place& place = side.places[tensor];
  Parameter& p = parameter(side, tensor);
  if (place.kind == Kind::kState)
    side.state->optimizer->states()[place.index].tensor.reset();
  else if (place.kind == Kind::kComponent)
    p.components[place.component].shard.reset(), p.components[place.component].value.reset();
  else
    ParameterTable::release_one(p);
}

// The tensor has equal places in both states: the same elements in the same order, perhaps with other local dims.
void StateTransfer::keep(Side& from, Side& to, size_t i, const Layout& layout) {
  const Place &here = from.places[i], &there = to.places[i];
  const Shape shape = layout.local_shape(to.state->model.mesh.rank);
  const std::vector<int64_t> sizes(shape.begin(), shape.end());
  if (here.kind == Kind::kState) {
    OptimizerState& state = to.state->optimizer->states()[there.index];
    state.tensor = std::exchange(from.state->optimizer->states()[here.index].tensor, {});
    if (state.tensor)
      state.tensor = state.shape == CHASSIS_STATE_PER_BLOCK ? state.tensor.flat() : state.tensor.view(sizes);
    return;
  }
  Parameter &p = parameter(from, i), &q = parameter(to, i);
  if (here.kind == Kind::kComponent) {
    StoredComponent& component = q.components[there.component];
    component = std::exchange(p.components[here.component], {});
    q.owned = p.owned;
    return;
  }
  ParameterTable::take_tensors(q, p);
  if (q.shard) q.shard = q.shard.view(sizes);
  if (q.value && q.value.sizes() != q.local_shape) q.value.reset();
}

TransferResult StateTransfer::run(Communicator& communicator) { return move(from_, to_, plan_, communicator); }

TransferResult StateTransfer::run_back(Communicator& communicator) {
  std::vector<ReshardTensor> back;
  for (const ReshardTensor& tensor : plan_.tensors) back.push_back({tensor.to, tensor.from});
  return move(to_, from_, plan_move(std::move(back)), communicator);
}

TransferResult StateTransfer::move(Side& from, Side& to, const LiveMovePlan& plan, Communicator& communicator) {
  CHASSIS_CHECK(!from.state->model.events && !to.state->model.events, "strategies have buffers of these tensors");
  TransferResult result;
  const std::vector<ReshardTensor>& tensors = plan.tensors;
  result.num_tensors = tensors.size();
  if (!to.state->model.storage) to.state->model.storage.emplace(to.state->parameters());
  const bool keeps_all = are_placed_alike(from.state->model, to.state->model);
  if (!keeps_all)
    for (const auto& p : from.state->parameters().all()) {
      if (is_slice_of_whole(*p)) p->shard = p->shard.clone();
      if (p->value && !p->value.shares_storage_with(p->shard)) p->value.reset();  // complete() makes it
    }

  LiveMove request;
  request.device = from.state->device();
  request.verify = true;
  request.source = [&](uint32_t t) { return tensor(from, t, tensors[t].from); };
  request.allocate = [&](uint32_t t) {
    allocate(to, t);
    return tensor(to, t, tensors[t].to);
  };
  request.release = [&](uint32_t t) { release(from, t); };
  request.restore = [&](uint32_t t) {
    allocate(from, t);
    return tensor(from, t, tensors[t].from);
  };
  request.discard = [&](uint32_t t) { release(to, t); };
  try {
    result.moved = live_move(plan, request, communicator);
  } catch (...) {
    complete(*from.state);
    throw;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!in_place_[i]) continue;
    const bool is_component = from.places[i].kind == Kind::kComponent;  // knows more about its layout than its shape
    if (rehoused_[i] || (is_component && !keeps_all))
      rehouse(from, to, i, tensors[i]);
    else
      keep(from, to, i, tensors[i].to);
  }
  result.num_kept = static_cast<uint64_t>(std::ranges::count(in_place_, 1));
  move_scalars(*from.state, *to.state, communicator);
  complete(*to.state);
  return result;
}

void StateTransfer::rehouse(Side& from, Side& to, size_t i, const ReshardTensor& layouts) {
  allocate(to, i);
  const Tensor source = tensor(from, i, layouts.from);
  if (source) tensor(to, i, layouts.to).copy_from(source);
  release(from, i);
}

void StateTransfer::complete(RunState& state) {
  const Device device = state.device();
  for (const auto& p : state.parameters().all()) {
    const bool is_there = p->is_quantized()
                              ? std::ranges::all_of(p->components, [](const StoredComponent& c) { return !!c.shard; })
                              : !!p->shard;
    if (!is_there) state.parameters().allocate_one(*p, device);
    state.parameters().allocate_value(*p, device);
  }
  for (OptimizerState& s : state.optimizer->states())
    if (!s.tensor) OptimizerDriver::allocate_state(s, state.parameters(), device);
}

// Only the first holder of a parameter is sure to have stepped its numbers.
void StateTransfer::move_scalars(RunState& from, RunState& to, Communicator& communicator) const {
  if (scalars_.empty()) return;
  std::vector<ReshardTensor> tensors;
  std::map<std::string, size_t> index;
  for (const size_t i : scalars_) {
    Descriptor before = from.optimizer->states()[i].descriptor, after = to.optimizer->states()[i].descriptor;
    before.owner = after.owner = OwnerRule::kFirst;
    index[before.fqn] = i;
    OptimizerDriver::allocate_state(to.optimizer->states()[i], to.parameters(), to.device());
    tensors.push_back(
        {Layout(std::move(before), from.model.mesh.shape), Layout(std::move(after), to.model.mesh.shape)});
  }
  ReshardRequest request;
  request.tensors = tensors;
  request.options = {.budget_bytes = kBucketBytes, .replicas_are_filled = false};
  request.from = [&](const Descriptor& d, int) { return from.optimizer->states()[index.at(d.fqn)].tensor; };
  request.to = [&](const Descriptor& d, int) { return to.optimizer->states()[index.at(d.fqn)].tensor; };
  request.device = from.device();
  reshard(request, communicator);
  for (const size_t i : scalars_) from.optimizer->states()[i].tensor.reset();
}

}  // namespace chassis
