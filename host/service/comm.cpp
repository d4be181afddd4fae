#include "host/service/comm.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "chassis/kind/comm.h"
#include "host/base/log.hpp"
#include "host/service/comm_call.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/comm_flight.hpp"
#include "host/service/comm_store.hpp"
#include "host/service/comm_watch.hpp"
#include "host/service/metrics.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSlice = std::chrono::milliseconds(100);

// Adds the time that it lives to a count.
class Exposed {
 public:
  explicit Exposed(double& ms) : ms_(ms) {}
  ~Exposed() { ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

 private:
  double& ms_;
  Clock::time_point start_ = Clock::now();
};

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

struct CommGroup::Impl {
  std::string key;  // unique in the run: the name and the first rank
  std::optional<CommStore> store;
  chassis_backend_group_t* group = nullptr;
  uint64_t sequence = 0;  // of the last start
};

struct CommWork::Impl {
  Communicator::Impl& owner;
  CommGroup& group;
  const Flight* flight = nullptr;          // NULL: done
  chassis_backend_work_t* work = nullptr;  // likewise
  std::vector<Tensor> kept;

  ~Impl();
};

struct Communicator::Impl {
  Impl(Communicator& owner, const chassis_comm_backend_t* table)
      : world(owner.world_), backend(owner.backend_.get()), table(table), device(owner.device_), flights(world) {
    if (table && table->wait_on_stream && device.type == Device::Type::kCuda) watch.emplace(*backend, *table, flights);
  }
  ~Impl() {
    watch.reset();
    for (const auto& group : groups) {
      if (group->impl_->group) table->destroy_group(backend->get("destroy_group"), group->impl_->group);
    }
  }

  bool traces() const {
    return table && num_taken < 2 && !has(CHASSIS_COMM_MOVES_NOTHING) && log::enabled(log::Level::kDebug);
  }
  bool has(uint32_t property) const { return table && (table->properties & property) != 0; }
  void connect(CommGroup& group);
  CommWork start(CommGroup& group, std::span<const chassis_collective_t* const> calls);
  void copy_alone(const CommBatch& batch) const;
  void wait(chassis_backend_work_t* work, const Flight& flight);
  [[noreturn]] void fail(chassis_status_t* status, const Flight& flight);
  void count(const CommGroup& group, const CommBatch& batch);
  CommCount& count_of(const CommGroup& group, uint32_t op);
  // Where the time of a batch is counted.
  double& wait_ms(const CommGroup& group, const CommBatch& batch);

  World& world;
  const Instance* backend;
  const chassis_comm_backend_t* table;
  Device device;
  std::vector<std::unique_ptr<CommGroup>> groups;
  std::map<std::string, CommGroup*> asked;  // by axes and ways
  std::vector<CommCount> counts;
  int num_taken = 0;
  Flights flights;
  std::optional<StreamWatch> watch;
};

CommGroup::CommGroup() : impl_(std::make_unique<Impl>()) {}
CommGroup::~CommGroup() = default;

CommWork::CommWork() = default;
CommWork::CommWork(CommWork&&) noexcept = default;
CommWork& CommWork::operator=(CommWork&&) noexcept = default;
CommWork::~CommWork() = default;
CommWork::Impl::~Impl() {
  if (work) owner.table->release(owner.backend->get("release"), work);
  if (flight) owner.flights.end(*flight);
}
bool CommWork::done() const {
  return !impl_ || !impl_->work || impl_->owner.table->done(impl_->owner.backend->get("done"), impl_->work) != 0;
}

Communicator::Communicator(std::unique_ptr<Instance> backend, World& world, MeshShape mesh, int rank, Device device)
    : world_(world), mesh_(std::move(mesh)), rank_(rank), device_(device), backend_(std::move(backend)) {
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
      backend_->check(table->supports(backend_->get("supports"), static_cast<uint32_t>(device_.type),
                                      static_cast<int32_t>(device_.index)));
    } catch (const Error& error) {
      throw config_error(error.message())
          .hint("set [comm] plugin = \"auto\" to take a backend that serves this device");
    }
  }
  impl_ = std::make_unique<Impl>(*this, table);
  CHASSIS_CHECK(backend_ || mesh_.world_size() == 1, "several ranks, but no backend");
  if (is_fake()) return;
  CHASSIS_CHECK(mesh_.world_size() == world_.size() && rank_ == world_.rank(), "the mesh is not that of the processes");
}

Communicator::~Communicator() = default;

bool Communicator::is_fake() const { return impl_->has(CHASSIS_COMM_MOVES_NOTHING); }

CommGroup& Communicator::group(std::span<const std::string> axes, int ways) {
  CommGroup*& asked = impl_->asked[fmt::format("{}:{}", fmt::join(axes, "+"), ways)];
  if (asked) return *asked;  // listing the ranks takes time in a large world
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
  if (ways > 0 && ways != static_cast<int>(ranks.size())) {
    if (static_cast<int>(ranks.size()) % ways != 0)
      throw config_error(fmt::format("{} ranks of {} are not divisible into groups of {}", ranks.size(), name, ways));
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    const auto first = ranks.begin() + own / ways * ways;
    ranks = {first, first + ways};
    name += fmt::format(":{}", ways);
  }
  for (const auto& known : impl_->groups) {
    if (known->ranks_ == ranks) return *(asked = known.get());
  }

  std::unique_ptr<CommGroup> made(new CommGroup);
  made->name_ = name;
  made->ranks_ = std::move(ranks);
  made->rank_ = static_cast<int>(std::find(made->ranks_.begin(), made->ranks_.end(), rank_) - made->ranks_.begin());
  made->impl_->key = fmt::format("{}.{}", name, made->ranks_[0]);
  if (made->size() > 1) impl_->connect(*made);
  return *(asked = impl_->groups.emplace_back(std::move(made)).get());
}

void Communicator::Impl::connect(CommGroup& group) {
  CommGroup::Impl& in = *group.impl_;
  const bool fake = has(CHASSIS_COMM_MOVES_NOTHING);
  if (!fake) {
    world.barrier("the communication group " + group.name());
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
    backend->check(table->create_group(backend->get("create_group"), &desc, &in.group));
  } catch (const Error& error) {
    if (!fake) world.throw_if_another_failed();
    throw Error(ExitCode::kCommunication, fmt::format("the ranks of {} do not connect", group.name()))
        .caused_by(error)
        .hint("the addresses that ranks give each other must be reachable; CHASSIS_HOST_ADDRESS sets another one");
  }
  if (!in.group)
    throw plugin_error(backend->who() + ": create_group returned no group and no error for " + group.name());
}

CommCount& Communicator::Impl::count_of(const CommGroup& group, uint32_t op) {
  const std::string_view name = comm_op_name(op);
  for (CommCount& known : counts) {
    if (known.group == group.name() && known.op == name) return known;
  }
  return counts.emplace_back(CommCount{group.name(), std::string(name)});
}

void Communicator::Impl::count(const CommGroup& group, const CommBatch& batch) {
  uint64_t ops_seen = 0;  // a bit each
  for (const chassis_collective_t& call : batch.calls()) {
    CommCount& counted = count_of(group, call.op);
    if (!(ops_seen >> call.op & 1u)) ++counted.calls;
    ops_seen |= uint64_t{1} << call.op;
    counted.bytes += batch.bytes(call);
    const auto dtype = static_cast<Dtype>(call.dtype);
    if (call.reduce && (dtype == Dtype::bf16 || dtype == Dtype::f16) && has(CHASSIS_COMM_ROUNDS_HALVES))
      counted_warning("sums rounded at each addition",
                      fmt::format("{} rounds sums of {} at each addition; [precision] reduce = \"fp32\" does not",
                                  backend->who(), dtype_name(dtype)));
  }
}

double& Communicator::Impl::wait_ms(const CommGroup& group, const CommBatch& batch) {
  return count_of(group, batch.calls().empty() ? CHASSIS_COMM_SEND : batch.calls()[0].op).wait_ms;
}

void Communicator::Impl::copy_alone(const CommBatch& batch) const {
  for (const chassis_collective_t& call : batch.calls()) {
    const uint64_t elements = call.counts ? call.counts[0] : call.count;
    copy_bytes(call.recv, call.send, elements * static_cast<uint64_t>(size_bytes(static_cast<Dtype>(call.dtype))),
               device);
  }
}

CommWork Communicator::Impl::start(CommGroup& group, std::span<const chassis_collective_t* const> calls) {
  const bool fake = has(CHASSIS_COMM_MOVES_NOTHING);
  if (watch) watch->throw_if_failed();
  CommBatch batch(calls, group.ranks_, group.rank_, fake);
  CommGroup::Impl& in = *group.impl_;
  CommWork out;
  out.impl_.reset(new CommWork::Impl{*this, group, nullptr, nullptr, {}});
  if (group.size() == 1) {
    if (!fake) copy_alone(batch);
    return out;
  }
  count(group, batch);
  const Exposed exposed(wait_ms(group, batch));
  const Flight& flight =
      flights.start({group.name_, in.key, &group.ranks_, group.rank_, ++in.sequence, std::move(batch)});
  out.impl_->flight = &flight;
  if (traces()) log::debug("comm: {}", flight.text());
  const auto given = flight.batch.pointers();
  chassis_status_t* status =
      table->start(backend->get("start"), in.group, given.data(), static_cast<uint32_t>(given.size()),
                   current_stream(device), &out.impl_->work);
  if (status) fail(status, flight);
  if (!out.impl_->work && !fake)
    throw plugin_error(backend->who() + ": start returned no work and no error for " + flight.text());
  return out;
}

void Communicator::Impl::wait(chassis_backend_work_t* work, const Flight& flight) {
  for (const Clock::time_point start = Clock::now();;) {
    const auto left = std::max<std::chrono::nanoseconds>(world.deadline() - (Clock::now() - start), {});
    const auto slice = std::min<std::chrono::nanoseconds>(left, kSlice);
    chassis_status_t* status = table->wait(backend->get("wait"), work, static_cast<uint64_t>(slice.count()));
    if (!status) return;
    if (status_code(status) != CHASSIS_DEADLINE_EXCEEDED) fail(status, flight);
    status_release(status);
    flights.look(flight, Clock::now() - start);
  }
}

void Communicator::Impl::fail(chassis_status_t* status, const Flight& flight) {
  try {
    backend->check(status);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kCommunication) throw;
    std::string who = "a rank";
    for (const auto& [key, value] : error.facts()) {
      if (key == "peer") who = fmt::format("rank {}", flight.ranks->at(std::stoul(value)));
    }
    throw Error(ExitCode::kCommunication, fmt::format("{} went away in {}", who, flight.text())).caused_by(error);
  }
  throw internal_error("a backend failed without a status");
}

CommWork Communicator::start_raw(CommGroup& group, std::span<const chassis_collective_t* const> calls) {
  return impl_->start(group, calls);
}

CommWork Communicator::start(CommGroup& group, std::vector<Collective> calls) {
  std::vector<chassis_collective_t> raw;
  std::vector<Tensor> kept;
  const auto size = static_cast<uint64_t>(group.size());
  for (Collective& call : calls) {
    chassis_collective_t& out = raw.emplace_back();
    out = {sizeof out, call.op, 0, 0, nullptr, nullptr, 0, nullptr, nullptr, call.peer, 0, str_of(call.name)};
    if (call.op == CHASSIS_COMM_REDUCE_SCATTER || call.op == CHASSIS_COMM_ALL_REDUCE) out.reduce = call.reduce;
    for (const Tensor* tensor : {&call.send, &call.recv}) {
      if (!*tensor) continue;
      CHASSIS_CHECK(tensor->is_contiguous(), call.name);
      CHASSIS_CHECK(out.dtype == 0 || out.dtype == static_cast<uint32_t>(tensor->dtype()), call.name);
      out.dtype = static_cast<uint32_t>(tensor->dtype());
    }
    const auto elements = [](const Tensor& t) { return t ? static_cast<uint64_t>(t.num_elements()) : 0; };
    const uint64_t sent = elements(call.send), received = elements(call.recv);
    if (!call.counts.empty()) {
      CHASSIS_CHECK(call.counts.size() == size && (call.recv_counts.empty() || call.recv_counts.size() == size),
                    call.name);
      out.counts = call.counts.data();
      if (!call.recv_counts.empty()) out.recv_counts = call.recv_counts.data();
    } else if (call.op == CHASSIS_COMM_ALL_GATHER) {
      CHASSIS_CHECK(received == size * sent, call.name);
      out.count = sent;
    } else if (call.op == CHASSIS_COMM_REDUCE_SCATTER) {
      CHASSIS_CHECK(sent == size * received, call.name);
      out.count = received;
    } else if (call.op == CHASSIS_COMM_ALL_TO_ALL) {
      CHASSIS_CHECK(sent == received && sent % size == 0, call.name);
      out.count = sent / size;
    } else {
      CHASSIS_CHECK(!call.send || !call.recv || sent == received, call.name);
      out.count = call.recv ? received : sent;
    }
    if (is_fake()) continue;
    if (call.send) out.send = call.send.data();
    if (call.recv) out.recv = call.recv.data();
    kept.push_back(std::move(call.send));
    kept.push_back(std::move(call.recv));
  }
  std::vector<const chassis_collective_t*> pointers;
  for (const chassis_collective_t& call : raw) pointers.push_back(&call);
  CommWork work = impl_->start(group, pointers);
  work.impl_->kept = std::move(kept);
  return work;
}

void Communicator::wait(CommWork& work) {
  CHASSIS_CHECK(work.impl_, "a work is waited for twice");
  const std::unique_ptr<CommWork::Impl> mine = std::move(work.impl_);
  if (!mine->work) return;
  const Flight& flight = *mine->flight;
  const Exposed exposed(impl_->wait_ms(mine->group, flight.batch));
  if (!impl_->watch) return impl_->wait(mine->work, flight);
  impl_->watch->throw_if_failed();
  chassis_status_t* status =
      impl_->table->wait_on_stream(backend_->get("wait_on_stream"), mine->work, current_stream(device_));
  if (status) impl_->fail(status, flight);
  impl_->watch->add(std::exchange(mine->work, nullptr), mine->group.impl_->group,
                    *std::exchange(mine->flight, nullptr));
}

void Communicator::run(CommGroup& group, Collective call) {
  std::vector<Collective> calls;
  calls.push_back(std::move(call));
  CommWork work = start(group, std::move(calls));
  wait(work);
}

void Communicator::sum(CommGroup& group, std::span<double> values, std::string_view name) {
  if (group.size() == 1 || is_fake() || values.empty()) return;
  const auto count = static_cast<int64_t>(values.size());
  const Tensor mine = Tensor::borrow(values.data(), std::array{count}, Dtype::f64);
  Collective call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.name = name;
  call.send = mine.to(device_);
  call.recv = Tensor::empty(std::array{count * group.size()}, Dtype::f64, device_);
  const Tensor gathered = call.recv;
  run(group, std::move(call));
  const Tensor all = gathered.to(Device{});
  throw_if_failed();  // a group that was given up lets its stream go on, with anything
  std::fill(values.begin(), values.end(), 0.0);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += all.data_as<double>()[static_cast<size_t>(rank) * values.size() + i];
  }
}

void Communicator::throw_if_failed() {
  if (impl_->watch) impl_->watch->throw_if_failed();
}

std::vector<CommCount> Communicator::take_counts() {
  ++impl_->num_taken;
  return std::exchange(impl_->counts, {});
}

bool Communicator::traces() const { return impl_->traces(); }

void write_metrics(const std::vector<CommCount>& counts, MetricsStore& metrics) {
  for (const CommCount& count : counts) {
    const std::string prefix = fmt::format("comm/{}/{}_", count.group, count.op);
    metrics.set(prefix + "bytes", static_cast<double>(count.bytes));
    metrics.set(prefix + "calls", static_cast<double>(count.calls));
    metrics.set(prefix + "wait_ms", count.wait_ms);
  }
}

}  // namespace chassis
