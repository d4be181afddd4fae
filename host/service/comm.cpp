// A Communicator and its groups. comm_work.cpp starts calls and waits for them.
#include "host/service/comm.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "host/service/comm_impl.hpp"

namespace chassis {
namespace {

// The ranks that differ from `rank` only on `axes`.
std::vector<int> ranks_along(const MeshShape& mesh, int rank, const std::vector<int>& axes) {
  std::vector<int> out;
  const MeshShape::Coordinates own = mesh.coordinates(rank);
  for (int other = 0; other < mesh.world_size(); ++other) {
    const MeshShape::Coordinates theirs = mesh.coordinates(other);
    bool along = true;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const auto i = static_cast<size_t>(axis);
      along = along && (theirs[i] == own[i] || std::find(axes.begin(), axes.end(), axis) != axes.end());
    }
    if (along) out.push_back(other);
  }
  return out;
}

}  // namespace

ProcessGroup::ProcessGroup() : impl_(std::make_unique<Impl>()) {}
ProcessGroup::~ProcessGroup() = default;

Communicator::Communicator(std::unique_ptr<Instance> backend, World& world, MeshShape mesh, int rank, Device device,
                           std::string prefix)
    : world_(world),
      prefix_(std::move(prefix)),
      mesh_(std::move(mesh)),
      rank_(rank),
      device_(device),
      backend_(std::move(backend)) {
  const chassis_comm_backend_t* table = nullptr;
  if (backend_) {
    table = &backend_->interface<chassis_comm_backend_t>(CHASSIS_COMM_BACKEND_ID);
    backend_->require(CHASSIS_COMM_BACKEND_ID, {{"supports", table->supports != nullptr},
                                                {"create_group", table->create_group != nullptr},
                                                {"destroy_group", table->destroy_group != nullptr},
                                                {"start", table->start != nullptr},
                                                {"wait", table->wait != nullptr},
                                                {"done", table->done != nullptr},
                                                {"release", table->release != nullptr},
                                                {"abort", table->abort != nullptr}});
    try {
      backend_->call("supports", [&](auto* self) {
        return table->supports(self, static_cast<uint32_t>(device_.type), static_cast<int32_t>(device_.index));
      });
    } catch (const Error& error) {
      throw config_error(error.message()).hint("set [comm] plugin = \"auto\" to use a backend that serves this device");
    }
  }
  impl_ = std::make_unique<Impl>(*this, table);
  CHASSIS_CHECK(backend_ || mesh_.world_size() == 1, "several ranks, but no backend");
  if (moves_nothing()) return;
  CHASSIS_CHECK(mesh_.world_size() == world_.size() && rank_ == world_.rank(), "the mesh is not that of the processes");
}

Communicator::~Communicator() = default;

bool Communicator::moves_nothing() const { return impl_->has(CHASSIS_COMM_MOVES_NOTHING); }

ProcessGroup& Communicator::group(std::span<const std::string> axes, int subgroup_size) {
  ProcessGroup*& known_group = impl_->groups_by_axes[fmt::format("{}:{}", fmt::join(axes, "+"), subgroup_size)];
  if (known_group) return *known_group;  // listing the ranks takes time in a large world
  std::vector<int> along;
  for (const std::string& name : axes) {
    along.push_back(mesh_.find(name));
    if (along.back() < 0) throw config_error(fmt::format("the mesh has no axis '{}'; it is {}", name, mesh_.text()));
  }
  std::vector<std::string> names;
  for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
    if (axes.empty()) along.push_back(axis);
    if (mesh_.size(axis) > 1 && std::find(along.begin(), along.end(), axis) != along.end())
      names.push_back(mesh_.axes()[static_cast<size_t>(axis)].name);
  }
  std::vector<int> ranks = ranks_along(mesh_, rank_, along);
  std::string name = names.empty() ? "self" : fmt::format("{}", fmt::join(names, "+"));
  if (subgroup_size > 0 && subgroup_size != static_cast<int>(ranks.size())) {
    if (static_cast<int>(ranks.size()) % subgroup_size != 0)
      throw config_error(
          fmt::format("the {} ranks of {} cannot be divided into groups of {}", ranks.size(), name, subgroup_size));
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    const auto first = ranks.begin() + own / subgroup_size * subgroup_size;
    ranks = {first, first + subgroup_size};
    name += fmt::format(":{}", subgroup_size);
  }
  for (const auto& known : impl_->groups) {
    if (known->impl_->is_shared && known->ranks_ == ranks) return *(known_group = known.get());
  }

  const std::string key = name;
  return *(known_group = &add_group(std::move(name), key, std::move(ranks)));
}

ProcessGroup& Communicator::group_on(const std::string& axis, std::span<const int> coordinates,
                                     const std::string& key) {
  ProcessGroup*& known_group = impl_->groups_by_axes[fmt::format("{}@{}", axis, key)];
  if (known_group) return *known_group;
  const int index = mesh_.find(axis);
  CHASSIS_CHECK(index >= 0, axis);
  MeshShape::Coordinates at = mesh_.coordinates(rank_);
  std::vector<int> ranks;
  for (const int coordinate : coordinates) {
    at[static_cast<size_t>(index)] = coordinate;
    ranks.push_back(mesh_.rank(at));
  }
  std::sort(ranks.begin(), ranks.end());
  CHASSIS_CHECK(std::find(ranks.begin(), ranks.end(), rank_) != ranks.end(), key);
  known_group = &add_group(axis, axis + ":" + key, std::move(ranks));
  known_group->impl_->is_shared = false;
  return *known_group;
}

ProcessGroup& Communicator::add_group(std::string name, const std::string& key, std::vector<int> ranks) {
  std::unique_ptr<ProcessGroup> group(new ProcessGroup);
  group->name_ = std::move(name);
  group->ranks_ = std::move(ranks);
  group->rank_ = static_cast<int>(std::find(group->ranks_.begin(), group->ranks_.end(), rank_) - group->ranks_.begin());
  group->impl_->key = fmt::format("{}{}.{}", prefix_, key, group->ranks_[0]);
  if (group->size() > 1) impl_->connect(*group);
  return *impl_->groups.emplace_back(std::move(group));
}

// Blocks until all ranks of the group have arrived, so that a backend that forms the group need not wait for any.
void Communicator::Impl::meet(const ProcessGroup& group) {
  const std::string prefix = fmt::format("comm/{}/arrived/", group.impl_->key);
  Store& store = *world.store();
  store.set(prefix + std::to_string(group.rank()), "");
  std::vector<int> missing(static_cast<size_t>(group.size()));
  std::iota(missing.begin(), missing.end(), 0);
  const auto all_here = [&] {
    std::erase_if(missing, [&](int other) { return store.find(prefix + std::to_string(other)).has_value(); });
    return missing.empty();
  };
  const auto late = [&] {
    std::vector<int> ranks;
    for (const int other : missing) ranks.push_back(group.ranks()[static_cast<size_t>(other)]);
    return fmt::format("the communication group {}: waited {} s for rank{} {}", group.name(),
                       std::chrono::duration_cast<std::chrono::seconds>(world.deadline()).count(),
                       ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  };
  world.wait_for(all_here, late);
}

void Communicator::Impl::connect(ProcessGroup& group) {
  ProcessGroup::Impl& in = *group.impl_;
  const bool fake = has(CHASSIS_COMM_MOVES_NOTHING);
  if (!fake) {
    meet(group);
    in.store.emplace(world, fmt::format("comm/{}/", in.key));
  }
  chassis_comm_group_desc_t desc{};
  desc.struct_size = sizeof desc;
  desc.size = static_cast<uint32_t>(group.size());
  desc.rank = static_cast<uint32_t>(group.rank());
  desc.device_type = static_cast<uint32_t>(device.type);
  desc.device_index = device.index;
  desc.name = str_of(in.key);
  desc.store = fake ? nullptr : in.store->table();
  desc.timeout_ns = static_cast<uint64_t>(std::chrono::nanoseconds(world.deadline()).count());
  desc.host = str_of(world.host_address());
  try {
    backend->call("create_group", [&](auto* self) { return table->create_group(self, &desc, &in.group); });
  } catch (const Error& error) {
    if (!fake) world.throw_if_another_failed();
    if (error.code() == ExitCode::kOutOfMemory) throw;
    throw Error(ExitCode::kCommunication, fmt::format("the ranks of {} could not connect to each other", group.name()))
        .caused_by(error)
        .hint("the address of every rank must be reachable from the others; CHASSIS_HOST_ADDRESS sets another address");
  }
  if (!in.group)
    throw plugin_error(backend->label() + ": create_group returned no group and no error for " + group.name());
}

}  // namespace chassis
