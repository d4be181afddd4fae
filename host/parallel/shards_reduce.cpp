// Shards: the reduction of gradients.
#include "host/base/error.hpp"
#include "host/parallel/shards.hpp"
#include "host/parallel/shards_impl.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"

namespace chassis {

// Takes the whole gradient from the executor; empty if this micro-batch wrote none.
Tensor Shards::take_gradient(Entry& e) {
  Parameter& p = *e.parameter;
  Tensor gradient = p.gradient_written ? std::move(p.gradient) : Tensor();
  p.gradient.reset();
  p.gradient_written = false;
  return gradient;
}

void Shards::reduce(std::span<const uint32_t> ids, uint32_t flags, const std::string& name) {
  const bool keep = flags & CHASSIS_REDUCE_KEEP;
  Launches launches;
  for (const uint32_t id : entries_of(ids)) {
    Entry& e = entry(id);
    if (!e.parameter->trainable) continue;
    if (e.reducing) finish_reduce(*std::shared_ptr<Flight>(e.reducing));
    launches.add(e.group, e.rule.reduce_dtype, id, reduces_in_place(e));
  }
  for (const auto& launch : launches.all()) start_reduce(launch.group, launch.dtype, launch.lanes, keep, name);
}

void Shards::start_reduce(ProcessGroup* group, Dtype dtype, const std::vector<std::vector<uint32_t>>& lanes, bool keep,
                          const std::string& name) {
  auto flight = std::make_shared<Flight>();
  flight->group = group;
  flight->name = name;
  for (const std::vector<uint32_t>& ids : lanes) {
    if (ids.empty()) continue;
    Lane& lane = flight->lanes.emplace_back();
    lane.ids = ids;
    flight->keep = keep && entry(ids[0]).replicas;  // without replicas there is nothing to do later
    bool even = true;
    for (uint32_t id : ids) {
      entry(id).reducing = flight;
      even &= entry(id).rule.owner < 0 || !group;
    }
    lane.lay_out(group ? group->size() : 1, group ? group->rank() : 0, even,
                 [&](uint32_t id, int rank) { return group ? sent(entries_[id], rank) : entries_[id].chunk; });
    fill_with_gradients(lane, dtype, group ? group->size() : 1);
    if (group)
      lane.recv = flat_buffer(lane.row(), dtype, device_);
    else
      lane.recv = std::move(lane.send);  // this rank has the whole gradient; finish_reduce adds the replicas
  }
  if (group) start(*flight, CHASSIS_COMM_REDUCE_SCATTER);
}

void Shards::fill_with_gradients(Lane& lane, Dtype dtype, int ranks) {
  Entry& first = entry(lane.ids[0]);
  if (reduces_in_place(first) && first.parameter->gradient_written) {
    lane.send = take_gradient(first).flat();
    return;
  }
  lane.send = flat_buffer(lane.total(), dtype, device_);
  for (size_t i = 0; i < lane.ids.size(); ++i) {
    Entry& e = entry(lane.ids[i]);
    const Tensor gradient = take_gradient(e);
    if (!moves_data()) continue;
    const Tensor flat = gradient ? gradient.flat() : Tensor();
    for (int r = 0; r < ranks; ++r) {
      const Part own = part(e, r);
      const int64_t padded = ranks == 1 ? e.chunk : sent(e, r);
      if (padded == 0) continue;
      const Tensor place = lane.send.narrow(0, lane.offset(i, r), padded);
      if (own.length < padded || !gradient) place.zero();
      if (own.length > 0 && gradient) place.narrow(0, 0, own.length).copy_from(flat.narrow(0, own.begin, own.length));
    }
  }
}

void Shards::wait_reduced(std::span<const uint32_t> ids) {
  for (const uint32_t id : entries_of(ids))
    if (const std::shared_ptr<Flight> flight = entry(id).reducing) finish_reduce(*flight);
}

void Shards::finish_reduce(Flight& flight) {
  if (flight.work) communicator_.wait(flight.work);
  ProcessGroup* const replicas = entry(flight.lanes[0].ids[0]).replicas;
  for (Lane& lane : flight.lanes) {
    lane.send.reset();
    for (size_t i = 0; i < lane.ids.size(); ++i) {
      Entry& e = entry(lane.ids[i]);
      CHASSIS_CHECK(e.replicas == replicas, "parameters of one reduction have the same replicas");
      if (flight.keep || !e.partial) continue;
      const Tensor sum = lane.recv.narrow(0, lane.own_offset(i), own_elements(e));
      sum.add(e.partial.to(sum.dtype()));
      e.partial.reset();
    }
  }
  if (replicas && !flight.keep) {
    for (Lane& lane : flight.lanes) lane.send = lane.recv;
    flight.group = replicas;
    start(flight, CHASSIS_COMM_ALL_REDUCE);
    if (flight.work) communicator_.wait(flight.work);
    for (Lane& lane : flight.lanes) lane.send.reset();
  }
  for (Lane& lane : flight.lanes) {
    for (size_t i = 0; i < lane.ids.size(); ++i) {
      Entry& e = entry(lane.ids[i]);
      e.reducing.reset();
      const Tensor sum = lane.recv.narrow(0, lane.own_offset(i), own_elements(e)).to(Dtype::f32);
      if (!flight.keep)
        add_reduced(e, sum);
      else if (e.partial)
        e.partial.add(sum);
      else
        e.partial = sum;
    }
    lane.recv.reset();
  }
}

void Shards::add_reduced(Entry& e, Tensor sum) {
  Parameter& p = *e.parameter;
  const Tensor own = to_shard_device(p, sum.narrow(0, 0, p.shard.num_elements()).view(p.shard.sizes()));
  if (p.reduced)
    p.reduced.add(own);
  else
    p.reduced = own;
  retag_memory(p.reduced, MemoryCategory::kGradients);
}

// The gradient on the device of the shard.
Tensor Shards::to_shard_device(const Parameter& p, const Tensor& gradient) const {
  if (!p.pinned || !device_.spec().pins_host_memory) return gradient.to(p.shard.device());
  MemoryTag tag(MemoryCategory::kGradients);
  const Tensor pinned = pinned_tensor(gradient.sizes(), gradient.dtype());
  pinned.copy_from(gradient);
  return pinned;
}

}  // namespace chassis
