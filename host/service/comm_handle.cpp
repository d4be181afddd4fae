// How the calls of a Communicator are started, waited for and counted.
#include "host/service/comm.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "host/base/log.hpp"
#include "host/service/comm_call.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/comm_impl.hpp"
#include "host/service/metrics.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kWaitSlice = std::chrono::milliseconds(100);

// Adds the time of its scope to a counter.
class ScopedTimer {
 public:
  explicit ScopedTimer(double& ms) : ms_(ms) {}
  ~ScopedTimer() { ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

 private:
  double& ms_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

CommHandle::CommHandle() = default;
CommHandle::CommHandle(CommHandle&&) noexcept = default;
CommHandle& CommHandle::operator=(CommHandle&&) noexcept = default;
CommHandle::~CommHandle() = default;
CommHandle::Impl::~Impl() {
  if (!work) return;
  const CalledInstance self = owner.backend->get("release");
  guarded_end([&] { owner.table->release(self, work); });
  if (flight) owner.flights.end(*flight);
}
bool CommHandle::done() const {
  return !impl_ || !impl_->work || impl_->owner.backend->call("done", [&](auto* self) {
    return impl_->owner.table->done(self, impl_->work);
  }) != 0;
}

CommCount& Communicator::Impl::count_of(const ProcessGroup& group, uint32_t op) {
  const std::string_view name = comm_op_name(op);
  for (CommCount& known : counts) {
    if (known.group == group.name() && known.op == name) return known;
  }
  return counts.emplace_back(CommCount{group.name(), std::string(name)});
}

void Communicator::Impl::count(const ProcessGroup& group, const CommBatch& batch) {
  uint64_t ops_seen = 0;  // one bit per op
  for (const chassis_collective_t& call : batch.calls()) {
    CommCount& counted = count_of(group, call.op);
    if (!(ops_seen >> call.op & 1u)) ++counted.calls;
    ops_seen |= uint64_t{1} << call.op;
    counted.bytes += batch.bytes(call);
    const auto dtype = static_cast<Dtype>(call.dtype);
    if (call.reduce && (dtype == Dtype::bf16 || dtype == Dtype::f16) && has(CHASSIS_COMM_ROUNDS_HALVES))
      counted_warning("sums rounded at each addition",
                      fmt::format("{} rounds sums of {} at each addition; [precision] reduce = \"fp32\" does not",
                                  backend->label(), dtype_name(dtype)));
  }
}

CommCount& Communicator::Impl::count_of(const ProcessGroup& group, const CommBatch& batch) {
  return count_of(group, batch.calls().empty() ? CHASSIS_COMM_SEND : batch.calls()[0].op);
}

void Communicator::Impl::copy_to_self(const CommBatch& batch) const {
  for (const chassis_collective_t& call : batch.calls()) {
    const uint64_t elements = call.counts ? call.counts[0] : call.count;
    copy_bytes(call.recv, call.send, elements * static_cast<uint64_t>(size_bytes(static_cast<Dtype>(call.dtype))),
               device);
  }
}

CommHandle Communicator::Impl::start(ProcessGroup& group, std::span<const chassis_collective_t* const> calls) {
  const bool fake = has(CHASSIS_COMM_MOVES_NOTHING);
  if (watch) watch->throw_if_failed();
  CommBatch batch(calls, group.ranks_, group.rank_, fake);
  ProcessGroup::Impl& in = *group.impl_;
  CommHandle out;
  out.impl_.reset(new CommHandle::Impl{*this, group, nullptr, nullptr, {}, {}});
  if (group.size() == 1) {
    if (!fake) copy_to_self(batch);
    return out;
  }
  count(group, batch);
  const ScopedTimer timer(count_of(group, batch).wait_ms);
  if (trace && trace->on()) [[unlikely]]
    out.impl_->begin_ns = Trace::now_ns();
  const Flight& flight =
      flights.start({group.name_, in.key, &group.ranks_, group.rank_, ++in.sequence, std::move(batch)});
  out.impl_->flight = &flight;
  if (logs_calls()) log::debug("comm: {}", flight.text());
  const auto given = flight.batch.pointers();
  const CalledInstance self = backend->get("start");
  chassis_status_t* status = call_plugin([&] {
    return table->start(self, in.group, given.data(), static_cast<uint32_t>(given.size()), current_stream(device),
                        &out.impl_->work);
  });
  if (status) throw_failure(status, flight);
  if (!out.impl_->work && !fake)
    throw plugin_error(backend->label() + ": start returned no work and no error for " + flight.text());
  out.impl_->started = Clock::now();
  if (out.impl_->begin_ns != 0) [[unlikely]]
    out.impl_->start_ns = Trace::now_ns() - out.impl_->begin_ns;
  return out;
}

void Communicator::Impl::trace_batch(const CommHandle::Impl& work, int64_t wait_begin_ns) {
  TraceSpan span{.begin_ns = work.begin_ns, .end_ns = Trace::now_ns(), .track = TraceTrack::kCollectives};
  span.by = trace->intern(work.group.name());
  span.wait_ns = work.start_ns + span.end_ns - wait_begin_ns;
  std::map<uint32_t, uint64_t> bytes;  // by op
  for (const chassis_collective_t& call : work.flight->batch.calls()) bytes[call.op] += work.flight->batch.bytes(call);
  for (const auto& [op, sent] : bytes) {
    span.name = trace->intern(comm_op_name(op));
    span.bytes = sent;
    span.num_calls =
        static_cast<uint64_t>(std::ranges::count(work.flight->batch.calls(), op, &chassis_collective_t::op));
    trace->add(span);
  }
}

void Communicator::Impl::wait(chassis_backend_work_t* work, const Flight& flight) {
  for (const Clock::time_point start = Clock::now();;) {
    const auto left = std::max<std::chrono::nanoseconds>(world.deadline() - (Clock::now() - start), {});
    const auto slice = std::min<std::chrono::nanoseconds>(left, kWaitSlice);
    const CalledInstance self = backend->get("wait");
    chassis_status_t* status =
        call_plugin([&] { return table->wait(self, work, static_cast<uint64_t>(slice.count())); });
    if (!status) return;
    if (status_code(status) != CHASSIS_DEADLINE_EXCEEDED) throw_failure(status, flight);
    status_release(status);
    flights.check(flight, Clock::now() - start);
  }
}

void Communicator::Impl::throw_failure(chassis_status_t* status, const Flight& flight) {
  try {
    backend->check(status);
  } catch (Error& error) {
    if (error.code() != ExitCode::kCommunication) {
      error.with("call", flight.text());
      throw;
    }
    std::string peer = "a rank";
    for (const auto& [key, value] : error.facts()) {
      if (key == "peer") peer = fmt::format("rank {}", flight.ranks->at(std::stoul(value)));
    }
    throw Error(ExitCode::kCommunication, fmt::format("{} went away in {}", peer, flight.text())).caused_by(error);
  }
  throw internal_error("a backend failed without a status");
}

CommHandle Communicator::start_raw(ProcessGroup& group, std::span<const chassis_collective_t* const> calls) {
  return impl_->start(group, calls);
}

CommHandle Communicator::start(ProcessGroup& group, std::vector<Collective> calls) {
  std::vector<chassis_collective_t> raw;
  std::vector<Tensor> tensors;
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
    if (moves_nothing()) continue;
    if (call.send) out.send = call.send.data();
    if (call.recv) out.recv = call.recv.data();
    tensors.push_back(std::move(call.send));
    tensors.push_back(std::move(call.recv));
  }
  std::vector<const chassis_collective_t*> pointers;
  for (const chassis_collective_t& call : raw) pointers.push_back(&call);
  CommHandle work = impl_->start(group, pointers);
  work.impl_->tensors = std::move(tensors);
  return work;
}

void Communicator::wait(CommHandle& work) {
  CHASSIS_CHECK(work.impl_, "work is waited for twice");
  const std::unique_ptr<CommHandle::Impl> in_flight = std::move(work.impl_);
  if (!in_flight->work) return;
  const Flight& flight = *in_flight->flight;
  CommCount& counted = impl_->count_of(in_flight->group, flight.batch);
  counted.hidden_ms += std::chrono::duration<double, std::milli>(Clock::now() - in_flight->started).count();
  const ScopedTimer timer(counted.wait_ms);
  const bool is_traced = in_flight->begin_ns != 0;
  const int64_t wait_begin_ns = is_traced ? Trace::now_ns() : 0;
  if (!impl_->watch) {
    impl_->wait(in_flight->work, flight);
    if (is_traced) [[unlikely]]
      impl_->trace_batch(*in_flight, wait_begin_ns);
    return;
  }
  impl_->watch->throw_if_failed();
  const CalledInstance self = backend_->get("wait_on_stream");
  chassis_status_t* status =
      call_plugin([&] { return impl_->table->wait_on_stream(self, in_flight->work, current_stream(device_)); });
  if (status) impl_->throw_failure(status, flight);
  if (is_traced) [[unlikely]]
    impl_->trace_batch(*in_flight, wait_begin_ns);
  impl_->watch->add(std::exchange(in_flight->work, nullptr), in_flight->group.impl_->group,
                    *std::exchange(in_flight->flight, nullptr));
}

void Communicator::run(ProcessGroup& group, Collective call) {
  std::vector<Collective> calls;
  calls.push_back(std::move(call));
  CommHandle work = start(group, std::move(calls));
  wait(work);
}

Tensor Communicator::received(ProcessGroup& group, std::span<double> values, int64_t num_parts, Collective call) {
  const auto count = static_cast<int64_t>(values.size());
  call.send = Tensor::borrow(values.data(), std::array{count}, Dtype::f64).to(device_);
  call.recv = Tensor::empty(std::array{count * num_parts}, Dtype::f64, device_);
  const Tensor there = call.recv;
  run(group, std::move(call));
  Tensor here = there.to(Device{});
  throw_if_failed();  // the stream of an aborted group continues with undefined values
  return here;
}

void Communicator::sum(ProcessGroup& group, std::span<double> values, std::string_view name) {
  if (group.size() == 1 || moves_nothing() || values.empty()) return;
  Collective call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.name = name;
  const Tensor all = received(group, values, group.size(), std::move(call));
  std::fill(values.begin(), values.end(), 0.0);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < values.size(); ++i)
      values[i] += all.data_as<double>()[static_cast<size_t>(rank) * values.size() + i];
  }
}

void Communicator::reduce(ProcessGroup& group, std::span<double> values, uint32_t reduction, std::string_view name) {
  if (group.size() == 1 || moves_nothing() || values.empty()) return;
  Collective call;
  call.reduce = reduction;
  call.name = name;
  const Tensor all = received(group, values, 1, std::move(call));
  std::copy_n(all.data_as<double>(), values.size(), values.begin());
}

void Communicator::throw_if_failed() {
  if (impl_->watch) impl_->watch->throw_if_failed();
}

std::vector<CommCount> Communicator::take_counts() {
  ++impl_->num_taken;
  return std::exchange(impl_->counts, {});
}

bool Communicator::logs_calls() const { return impl_->logs_calls(); }
void Communicator::set_trace(Trace* trace) { impl_->trace = trace; }
Hang Communicator::hang() { return impl_->flights.hang(); }

void write_metrics(const std::vector<CommCount>& counts, MetricsStore& metrics) {
  for (const CommCount& count : counts) {
    const std::string prefix = fmt::format("comm/{}/{}_", count.group, count.op);
    metrics.set(prefix + "bytes", static_cast<double>(count.bytes));
    metrics.set(prefix + "calls", static_cast<double>(count.calls));
    metrics.set(prefix + "wait_ms", count.wait_ms);
    metrics.add("comm_exposed_ms", count.wait_ms);
    metrics.add("comm_hidden_ms", count.hidden_ms);
  }
}

}  // namespace chassis
