// Shards: resident tensors, gathers, and the table for strategies.
#include "host/parallel/shards.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/parallel/shards_impl.hpp"
#include "host/plugin/status.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

// From this size on a parameter has a separate collective in its launch, which saves copies.
constexpr int64_t kSeparateBytes = 16 << 20;

Shards& self_of(const chassis_shards_t* table) { return *static_cast<Shards*>(table->impl); }

}  // namespace

Shards::Shards(ParameterTable& table, const std::vector<Parameter*>& here, std::vector<ShardRule> rules,
               Communicator& communicator, Device device)
    : parameters_(table), communicator_(communicator), device_(device) {
  CHASSIS_CHECK(rules.size() == here.size(), "one rule for each parameter");
  for (size_t i = 0; i < rules.size(); ++i) {
    Parameter& p = *here[i];
    first_entry_.push_back(static_cast<uint32_t>(entries_.size()));
    for (size_t c = 0; c < std::max<size_t>(1, p.components.size()); ++c) add_entry(p, c, rules[i]);
  }
  first_entry_.push_back(static_cast<uint32_t>(entries_.size()));
  table_.struct_size = sizeof table_;
  table_.impl = this;
  table_.gather = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n, chassis_str_t name) {
    return guarded([&] { self_of(s).gather({ids, n}, std::string(view_of(name))); });
  };
  table_.wait_gathered = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n) {
    return guarded([&] { self_of(s).wait_gathered({ids, n}); });
  };
  table_.release = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n) {
    return guarded([&] { self_of(s).release({ids, n}); });
  };
  table_.shrink = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n, uint32_t ways) {
    return guarded([&] { self_of(s).shrink({ids, n}, static_cast<int>(ways)); });
  };
  table_.reduce = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n, uint32_t flags, chassis_str_t name) {
    return guarded([&] { self_of(s).reduce({ids, n}, flags, std::string(view_of(name))); });
  };
  table_.wait_reduced = [](const chassis_shards_t* s, const uint32_t* ids, uint32_t n) {
    return guarded([&] { self_of(s).wait_reduced({ids, n}); });
  };
  table_.is_whole = [](const chassis_shards_t* s, uint32_t id) -> int32_t { return self_of(s).is_whole(id); };
  table_.gathered_bytes = [](const chassis_shards_t* s) { return self_of(s).gathered_bytes(); };
}

Shards::~Shards() = default;

// Components are cut where their parameter is, in their own values; those without units are whole everywhere.
void Shards::add_entry(Parameter& p, size_t component, ShardRule rule) {
  Entry& e = entries_.emplace_back();
  e.parameter = &p;
  e.value_dtype = parameters_.compute();
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int64_t unit_elements = 1, unit_values = 1;
  if (p.is_quantized()) {
    const Component& described = p.storage->components()[component];
    e.component = &p.components[component];
    e.value_dtype = rule.gather_dtype = described.dtype;
    if (described.unit_elements == 0) {
      rule = ShardRule();
      rule.resident = e.is_table = true;
      rule.gather_dtype = described.dtype;
    } else {
      CHASSIS_CHECK(rule.kind != CHASSIS_SHARD_DIM, "quantized parameters are cut between blocks");
      unit_elements = described.unit_elements, unit_values = described.unit_values;
    }
  }
  const MeshShape& mesh = parameters_.mesh();
  const auto group_of = [&](const std::vector<std::string>& axes) -> ProcessGroup* {
    int size = 1;
    for (const std::string& axis : axes) size *= mesh.size(mesh.find(axis));
    return size == 1 ? nullptr : &communicator_.group(axes);
  };
  e.rule = std::move(rule);
  if (e.rule.kind != CHASSIS_SHARD_REPLICATE) e.group = group_of(e.rule.axes);
  e.replicas = group_of(e.rule.replica_axes);
  e.elements = e.chunk = numel(Shape(e.local_shape()));
  const int ways = group_size(e);
  if (!e.group || e.rule.owner >= 0) return;
  if (e.rule.kind == CHASSIS_SHARD_DIM) {
    const int64_t rows = e.local_shape().empty() ? 1 : e.local_shape()[0];
    e.chunk = rows ? ceil_div(rows, ways) * (e.elements / rows) : 0;
  } else {
    const int64_t elements = numel(Shape(p.local_shape));
    e.chunk = ceil_div(ceil_div(elements, e.rule.block), ways) * e.rule.block / unit_elements * unit_values;
  }
}

std::vector<uint32_t> Shards::entries_of(std::span<const uint32_t> parameters) const {
  std::vector<uint32_t> out;
  for (const uint32_t id : parameters) {
    if (id + 1 >= first_entry_.size())
      throw plugin_error("a strategy named parameter " + std::to_string(id) + " of " +
                         std::to_string(first_entry_.size() - 1));
    for (uint32_t entry = first_entry_[id]; entry < first_entry_[id + 1]; ++entry) out.push_back(entry);
  }
  return out;
}

// Chunks of ceil(count / ways); the last ones may be short or empty.
Shards::Part Shards::even_part(int64_t count, int ways, int rank) {
  const int64_t chunk = (count + ways - 1) / ways;
  const int64_t begin = std::min(count, rank * chunk);
  return {begin, std::min(count, begin + chunk) - begin};
}

Shards::Part Shards::part(const Entry& e, int rank) {
  if (e.rule.owner >= 0 && e.group) return {0, rank == e.rule.owner ? e.elements : 0};
  const int64_t begin = std::min(e.elements, rank * e.chunk);
  return {begin, std::min(e.elements, begin + e.chunk) - begin};
}

// Elements in a rank's row: its part, padded if every rank sends the same number.
int64_t Shards::sent(const Entry& e, int rank) { return e.rule.owner >= 0 ? part(e, rank).length : e.chunk; }

// The results of a fake backend are undefined, so they are not copied.
bool Shards::moves_data() const { return !communicator_.moves_nothing(); }

void Shards::allocate(bool keeps) {
  for (Entry& e : entries_) {
    Tensor& value = e.value();
    if (!e.rule.resident) {
      value.reset();
      continue;
    }
    if (value) continue;  // has the shape of its shard, so the table has allocated it
    MemoryTag tag(MemoryCategory::kParameters);
    if (e.rule.kind != CHASSIS_SHARD_FLAT || e.rule.owner >= 0 || !value_can_be_shard(e)) {
      value = Tensor::empty(e.local_shape(), e.value_dtype, device_);
      continue;
    }
    // The shard is a slice of the whole tensor, whose memory has the padding at its end.
    const int64_t sizes[] = {e.chunk * group_size(e)};
    const Tensor whole = Tensor::zeros(sizes, e.shard().dtype(), device_);
    value = whole.narrow(0, 0, e.elements).view(e.local_shape());
    const Tensor part = whole.narrow(0, group_rank(e) * e.chunk, e.chunk);
    if (keeps) part.copy_from(e.shard());
    e.shard() = part;
  }
}

void Shards::mark_stale() {
  for (Entry& e : entries_) {
    e.fresh = e.rule.resident && !e.group && e.value() && e.value().shares_storage_with(e.shard());
    if (e.rule.resident) e.state = e.fresh ? State::kWhole : State::kSharded;
    if (e.is_table && !e.fresh) make_whole_locally(e);  // no strategy knows about it
  }
}

std::vector<std::string> Shards::stale() const {
  std::vector<std::string> names;
  for (const Entry& e : entries_)
    if (e.rule.resident && !e.fresh) names.push_back(e.parameter->name);
  return names;
}

bool Shards::is_whole(uint32_t id) const {
  if (id + 1 >= first_entry_.size()) return false;
  return std::all_of(entries_.begin() + first_entry_[id], entries_.begin() + first_entry_[id + 1],
                     [](const Entry& e) { return e.state == State::kWhole; });
}

// ---- gather

void Shards::gather(std::span<const uint32_t> ids, const std::string& name) {
  Launches launches;
  for (const uint32_t id : entries_of(ids)) {
    Entry& e = entry(id);
    ++e.uses;
    if (e.state != State::kSharded) continue;
    ProcessGroup* group = e.kept ? e.kept_group : e.group;
    if (!group) {
      make_whole_locally(e);
      continue;
    }
    e.state = State::kGathering;
    const Dtype dtype = e.kept ? e.kept.dtype() : e.rule.gather_dtype;
    launches.add(group, dtype, id, gathers_in_place(e, dtype));
  }
  for (const auto& launch : launches.all()) start_gather(*launch.group, launch.dtype, launch.lanes, name);
}

// True if the tensor is large and consists of the parts of all ranks in order, without padding.
bool Shards::is_large_and_unpadded(const Entry& e, Dtype dtype) const {
  const bool padded = e.rule.owner < 0 && e.chunk * group_size(e) != e.elements;
  return e.group && !padded && e.elements * size_bytes(dtype) >= kSeparateBytes;
}

bool Shards::gathers_in_place(const Entry& e, Dtype dtype) const {
  if (e.kept || dtype != e.value_dtype || !is_large_and_unpadded(e, dtype)) return false;
  if (e.rule.owner >= 0) return !e.rule.resident || !value_can_be_shard(e);  // the same answer on ranks without a shard
  return !e.rule.resident || !e.shard().shares_storage_with(e.value());
}

// True if ops can read what is stored.
bool Shards::value_can_be_shard(const Entry& e) const {
  return e.shard().dtype() == e.value_dtype && e.shard().device() == device_;
}

// True if the reduction can use the executor's gradient, which is in fp32, as its input.
bool Shards::reduces_in_place(const Entry& e) const {
  return e.rule.reduce_dtype == Dtype::f32 && is_large_and_unpadded(e, Dtype::f32);
}

void Shards::make_whole_locally(Entry& e) {
  Tensor& value = e.value();
  if (e.rule.resident && value) {
    if (!value.shares_storage_with(e.shard())) value.flat().copy_from(e.shard().flat());
  } else {
    MemoryTag tag(MemoryCategory::kGathered);
    value = e.shard().flat().to(device_).to(e.value_dtype).view(e.local_shape());
  }
  e.state = State::kWhole;
  e.fresh = true;
}

void Shards::start(Flight& flight, uint32_t op) {
  std::vector<Collective> calls;
  for (const Lane& lane : flight.lanes) {
    if (op == CHASSIS_COMM_ALL_REDUCE && lane.send.num_elements() == 0)
      continue;  // the replicas have no elements either
    Collective& call = calls.emplace_back();
    call.op = op;
    call.send = lane.send;
    call.recv = lane.recv;
    call.name = flight.name;
    if (op != CHASSIS_COMM_ALL_REDUCE) call.counts = lane.counts;
  }
  if (calls.empty()) return;
  flight.work = communicator_.start(*flight.group, std::move(calls));
}

void Shards::start_gather(ProcessGroup& group, Dtype dtype, const std::vector<std::vector<uint32_t>>& lanes,
                          const std::string& name) {
  auto flight = std::make_shared<Flight>();
  flight->group = &group;
  flight->name = name;
  for (const std::vector<uint32_t>& ids : lanes) {
    if (ids.empty()) continue;
    Lane& lane = flight->lanes.emplace_back();
    lane.ids = ids;
    bool even = true;
    for (uint32_t id : ids) {
      Entry& e = entry(id);
      e.gathering = flight;
      even &= e.rule.owner < 0 || e.kept;
    }
    lane.lay_out(group.size(), group.rank(), even, [&](uint32_t id, int rank) {
      const Entry& e = entries_[id];
      return e.kept ? e.kept.num_elements() : sent(e, rank);
    });
    lane.send = flat_buffer(lane.row(), dtype, device_);
    for (size_t i = 0; i < ids.size(); ++i) {
      const Entry& e = entry(ids[i]);
      const Tensor& from = e.kept ? e.kept : e.shard();
      if (const int64_t count = from.num_elements())
        lane.send.narrow(0, lane.own_offset(i), count).copy_from(from.flat());
    }
    lane.in_place = gathers_in_place(entry(ids[0]), dtype);
    lane.recv = lane.in_place ? whole_buffer(entry(ids[0])).flat() : flat_buffer(lane.total(), dtype, device_);
  }
  start(*flight, CHASSIS_COMM_ALL_GATHER);
}

Tensor Shards::whole_buffer(const Entry& e) const {
  if (e.rule.resident) return e.value();
  MemoryTag tag(MemoryCategory::kGathered);
  return Tensor::empty(e.local_shape(), e.value_dtype, device_);
}

void Shards::wait_gathered(std::span<const uint32_t> ids) {
  for (const uint32_t id : entries_of(ids)) {
    Entry& e = entry(id);
    if (e.state == State::kWhole) continue;
    if (e.state != State::kGathering)
      throw plugin_error("a strategy waits for parameter '" + e.parameter->name + "', which it did not gather");
    const std::shared_ptr<Flight> flight = e.gathering;
    finish_gather(*flight);
  }
}

void Shards::finish_gather(Flight& flight) {
  communicator_.wait(flight.work);
  for (Lane& lane : flight.lanes) {
    lane.send.reset();
    for (size_t i = 0; i < lane.ids.size(); ++i) {
      Entry& e = entry(lane.ids[i]);
      e.gathering.reset();
      if (!e.rule.resident) {
        if (e.uses == 0) {  // released before the gather ended: nothing reads it
          e.state = State::kSharded;
          continue;
        }
        set_whole(e, lane.in_place ? lane.recv.view(e.local_shape()) : whole_buffer(e));
      }
      if (!lane.in_place) copy_parts(e, lane, i, flight.group->size());
      e.kept.reset();
      e.kept_group = nullptr;
      e.state = State::kWhole;
      e.fresh = true;
    }
    lane.recv.reset();
  }
}

void Shards::copy_parts(const Entry& e, const Lane& lane, size_t i, int ranks) {
  if (!moves_data()) return;
  const Tensor whole = e.value().flat();
  for (int r = 0; r < ranks; ++r) {
    const Part from = e.kept ? even_part(e.elements, ranks, r) : part(e, r);
    if (from.length == 0) continue;
    if (e.rule.resident && r == group_rank(e) && e.shard().shares_storage_with(e.value())) continue;
    whole.narrow(0, from.begin, from.length).copy_from(lane.recv.narrow(0, lane.offset(i, r), from.length));
  }
}

void Shards::set_whole(Entry& e, Tensor value) {
  e.value() = std::move(value);
  gathered_bytes_ += e.value().num_bytes();
}

void Shards::free_whole(Entry& e) {
  if (e.group) gathered_bytes_ -= e.value().num_bytes();
  e.value().reset();
  e.state = State::kSharded;
}

void Shards::release(std::span<const uint32_t> ids) {
  for (const uint32_t id : entries_of(ids)) {
    Entry& e = entry(id);
    if (e.uses == 0)
      throw plugin_error("a strategy releases parameter '" + e.parameter->name + "' more often than it gathers it");
    if (--e.uses == 0 && !e.rule.resident && e.state == State::kWhole) free_whole(e);
  }
}

void Shards::shrink(std::span<const uint32_t> ids, int ways) {
  for (const uint32_t id : entries_of(ids)) {
    Entry& e = entry(id);
    if (e.uses == 0)
      throw plugin_error("a strategy releases parameter '" + e.parameter->name + "' more often than it gathers it");
    if (--e.uses > 0 || e.rule.resident || e.state != State::kWhole) continue;
    const int size = group_size(e);
    if (ways < 1 || size % ways != 0)
      throw config_error("parameter '" + e.parameter->name + "' is divided over " + std::to_string(size) +
                         " ranks, which cannot be cut into groups of " + std::to_string(ways))
          .hint("choose a number that divides " + std::to_string(size));
    if (ways > 1 && e.group) {
      e.kept_group = &communicator_.group(e.rule.axes, ways);
      const Tensor whole = e.value().flat();
      const Part own = even_part(whole.num_elements(), ways, e.kept_group->rank());
      MemoryTag tag(MemoryCategory::kGathered);
      const int64_t sizes[] = {even_part(whole.num_elements(), ways, 0).length};
      e.kept = Tensor::zeros(sizes, whole.dtype(), device_);
      if (own.length > 0) e.kept.narrow(0, 0, own.length).copy_from(whole.narrow(0, own.begin, own.length));
    }
    free_whole(e);
  }
}

// ---- end of a step

void Shards::wait_all() {
  for (Entry& e : entries_) {
    if (e.gathering) finish_gather(*std::shared_ptr<Flight>(e.gathering));
    if (e.reducing) finish_reduce(*std::shared_ptr<Flight>(e.reducing));
    if (e.rule.resident) continue;
    if (e.uses > 0)
      throw plugin_error("parameter '" + e.parameter->name + "' is still gathered: its strategy must release it " +
                         std::to_string(e.uses) + (e.uses == 1 ? " more time" : " more times"));
    if (e.state == State::kWhole) free_whole(e);
    e.kept.reset();
  }
}

}  // namespace chassis
