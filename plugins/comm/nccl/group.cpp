// NCCL calls for each collective, and the life of the communicator.
#include "group.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace comm_nccl {
namespace {

using Clock = std::chrono::steady_clock;

ncclDataType_t type_of(uint32_t dtype) {
  switch (dtype) {
    case CHASSIS_DTYPE_F32:
      return ncclFloat32;
    case CHASSIS_DTYPE_F64:
      return ncclFloat64;
    case CHASSIS_DTYPE_F16:
      return ncclFloat16;
    case CHASSIS_DTYPE_BF16:
      return ncclBfloat16;
    case CHASSIS_DTYPE_I64:
      return ncclInt64;
    case CHASSIS_DTYPE_I32:
      return ncclInt32;
    default:
      return ncclUint8;  // moved as bytes
  }
}

// The number of elements as NCCL counts them; bytes for types that it does not know.
uint64_t units(uint32_t dtype, uint64_t num_bytes) {
  return type_of(dtype) == ncclUint8 ? num_bytes : num_bytes / dtype_bytes(dtype);
}

ncclRedOp_t reduction_of(uint32_t reduce) {
  return reduce == CHASSIS_REDUCE_MAX ? ncclMax : reduce == CHASSIS_REDUCE_AVG ? ncclAvg : ncclSum;
}

// Blocks until ready() is true, spinning at first; false after `timeout`.
template <typename Ready>
bool poll(std::chrono::nanoseconds timeout, Ready&& ready) {
  const Clock::time_point start = Clock::now();
  for (auto pause = std::chrono::microseconds(0); !ready();) {
    const auto waited = Clock::now() - start;
    if (waited >= timeout) return false;
    if (waited > std::chrono::microseconds(50))
      pause = std::min(2 * pause + std::chrono::microseconds(10), std::chrono::microseconds(1000));
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
  return true;
}

class NcclWork final : public BackendWork {
 public:
  explicit NcclWork(NcclGroup& group) : group_(group), done_(group.acquire_event()) {}
  ~NcclWork() override {
    if (cudaEventQuery(done_) == cudaErrorNotReady) group_.abort();
    cudaEventSynchronize(done_);
    group_.release_event(done_);
  }
  cudaEvent_t event() const { return done_; }

  bool wait(std::chrono::nanoseconds timeout) override {
    return poll(timeout, [&] {
      const cudaError_t state = cudaEventQuery(done_);
      if (state == cudaErrorNotReady) {
        group_.check_failure();
        return false;
      }
      check_cuda(state, "a collective failed");
      group_.check_failure();
      return true;
    });
  }
  void wait_on_stream(void* stream) override {
    check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), done_, 0), "cudaStreamWaitEvent");
  }
  bool done() noexcept override {
    if (cudaEventQuery(done_) != cudaErrorNotReady) return true;
    try {
      group_.check_failure();
      return false;
    } catch (const Failure&) {
      return true;
    }
  }

 private:
  NcclGroup& group_;
  cudaEvent_t done_;
};

}  // namespace

NcclGroup::NcclGroup(const Library& nccl, const CommGroupDesc& desc, const GroupOptions& options)
    : nccl_(nccl),
      size_(desc.size),
      rank_(desc.rank),
      device_(desc.device_index),
      options_(options),
      timeout_(desc.timeout) {
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, options_.high_priority ? greatest : least),
             "cudaStreamCreateWithPriority");
  stream_.reset(stream);
  void* word = nullptr;
  check_cuda(cudaMalloc(&word, sizeof(int32_t)), "cudaMalloc");
  barrier_word_.reset(static_cast<int32_t*>(word));
  ncclUniqueId id;
  if (rank_ == 0) {
    check(nccl_.GetUniqueId(&id), "ncclGetUniqueId");
    desc.store.set("nccl", {id.internal, sizeof id.internal});
  } else {
    const std::string text = desc.store.get("nccl", timeout_);
    if (text.size() != sizeof id.internal)
      throw Failure(CHASSIS_INTERNAL, "NCCL's id in the store has ", text.size(), " bytes, expected ",
                    sizeof id.internal);
    std::memcpy(id.internal, text.data(), text.size());
  }
  connect(desc, id);  // last, since on failure it destroys the communicator itself
}

// The communicator is non-blocking, so that this ends when a rank has failed or does not join in time.
void NcclGroup::connect(const CommGroupDesc& desc, const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = desc.name.c_str();
  const Clock::time_point start = Clock::now();
  try {
    check(nccl_.CommInitRankConfig(&comm_, static_cast<int>(size_), id, static_cast<int>(rank_), &config),
          "ncclCommInitRankConfig");
    while (state() == ncclInProgress) {
      if (Clock::now() - start >= timeout_)
        throw Failure(CHASSIS_UNAVAILABLE, "not all ranks joined NCCL's communicator within ",
                      std::chrono::duration<double>(timeout_).count(), " s");
      try {
        // No rank sets this key; get throws ABORTED if a rank has failed.
        desc.store.get("another rank failed", std::chrono::milliseconds(100));
      } catch (const Failure& failure) {
        if (failure.code() != CHASSIS_DEADLINE_EXCEEDED) throw;
      }
    }
    check_failure();
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  cudaSetDevice(device_);
  {
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) {
      for (const auto& [buffer, handle] : registered_) nccl_.CommDeregister(comm_, handle);
      if (nccl_.CommFinalize(comm_) <= ncclInProgress)
        poll(std::chrono::seconds(5), [&] { return state() != ncclInProgress; });
      if (state() == ncclSuccess)
        nccl_.CommDestroy(comm_);
      else
        nccl_.CommAbort(comm_);
    }
  }
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void NcclGroup::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) nccl_.CommAbort(comm_);
  comm_ = nullptr;
}

ncclResult_t NcclGroup::state() {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &result);
  return asked == ncclSuccess ? result : asked;
}

void NcclGroup::check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const last = comm_ != nullptr ? nccl_.GetLastError(comm_) : nullptr;
  const std::string_view more = last != nullptr ? last : "";
  throw Failure(CHASSIS_ABORTED, what, ": ", nccl_.GetErrorString(result), more.empty() ? "" : ": ", more);
}

void NcclGroup::check_failure() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw Failure(CHASSIS_ABORTED, "the group was aborted");
  check(state(), "NCCL");
}

// Does not hold the lock while it waits, so that another thread can abort the group.
void NcclGroup::wait_until_started() {
  const bool has_started = poll(timeout_, [&] {
    const std::lock_guard lock(mutex_);
    return comm_ == nullptr || state() != ncclInProgress;
  });
  if (!has_started) {
    abort();
    throw Failure(CHASSIS_ABORTED, "NCCL did not start a collective within ",
                  std::chrono::duration<double>(timeout_).count(), " s");
  }
  check_failure();
}

cudaEvent_t NcclGroup::acquire_event() {
  const std::lock_guard lock(events_mutex_);
  cudaEvent_t event = nullptr;
  if (events_.empty()) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  } else {
    event = events_.back();
    events_.pop_back();
  }
  return event;
}

void NcclGroup::release_event(cudaEvent_t event) noexcept {
  const std::lock_guard lock(events_mutex_);
  try {
    events_.push_back(event);
  } catch (const std::bad_alloc&) {
    cudaEventDestroy(event);
  }
}

std::unique_ptr<BackendWork> NcclGroup::start(std::span<const chassis_collective_t> calls, void* stream) {
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  auto work = std::make_unique<NcclWork>(*this);
  // The event first marks the caller's stream, then this group's: a queued wait refers to the record at the time of
  // queueing.
  const cudaEvent_t ready = work->event();
  check_cuda(cudaEventRecord(ready, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(stream_.get(), ready, 0), "cudaStreamWaitEvent");
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw Failure(CHASSIS_ABORTED, "the group was aborted");
    check(nccl_.GroupStart(), "ncclGroupStart");
    try {
      for (const chassis_collective_t& call : calls) add(call);
    } catch (...) {
      nccl_.GroupEnd();
      throw;
    }
    check(nccl_.GroupEnd(), "ncclGroupEnd");
  }
  wait_until_started();
  check_cuda(cudaEventRecord(work->event(), stream_.get()), "cudaEventRecord");
  return work;
}

void NcclGroup::register_buffer(const void* data, uint64_t num_bytes) {
  if (!options_.register_buffers || data == nullptr || num_bytes == 0) return;
  void*& handle = registered_[{data, num_bytes}];
  if (handle == nullptr)
    check(nccl_.CommRegister(comm_, const_cast<void*>(data), num_bytes, &handle), "ncclCommRegister");
}

void NcclGroup::add(const chassis_collective_t& call) {
  const ncclDataType_t type = type_of(call.dtype);
  const ncclRedOp_t reduction = reduction_of(call.reduce);
  const CommParts parts(call.counts, call.count, size_, call.dtype);
  const int peer = call.peer;
  const uint64_t num_bytes = call.count * dtype_bytes(call.dtype), count = units(call.dtype, num_bytes);
  const auto part_count = [&](uint32_t r) { return units(call.dtype, parts.size(r)); };
  switch (call.op) {
    case CHASSIS_COMM_ALL_GATHER:
      register_buffer(call.send, parts.size(rank_));
      register_buffer(call.recv, parts.total());
      if (call.counts == nullptr)
        return check(nccl_.AllGather(call.send, call.recv, count, type, comm_, stream_.get()), "ncclAllGather");
      for (uint32_t r = 0; r < size_; ++r) {
        if (part_count(r) == 0) continue;
        char* part = parts.in(call.recv, r);
        check(nccl_.Broadcast(r == rank_ ? call.send : part, part, part_count(r), type, static_cast<int>(r), comm_,
                              stream_.get()),
              "ncclBroadcast");
      }
      return;
    case CHASSIS_COMM_REDUCE_SCATTER:
      register_buffer(call.send, parts.total());
      register_buffer(call.recv, parts.size(rank_));
      if (call.counts == nullptr)
        return check(nccl_.ReduceScatter(call.send, call.recv, count, type, reduction, comm_, stream_.get()),
                     "ncclReduceScatter");
      for (uint32_t r = 0; r < size_; ++r) {
        if (part_count(r) == 0) continue;
        check(nccl_.Reduce(parts.in(call.send, r), r == rank_ ? call.recv : nullptr, part_count(r), type, reduction,
                           static_cast<int>(r), comm_, stream_.get()),
              "ncclReduce");
      }
      return;
    case CHASSIS_COMM_ALL_REDUCE:
      register_buffer(call.send, num_bytes);
      register_buffer(call.recv, num_bytes);
      return check(nccl_.AllReduce(call.send, call.recv, count, type, reduction, comm_, stream_.get()),
                   "ncclAllReduce");
    case CHASSIS_COMM_ALL_TO_ALL: {
      const CommParts from(call.recv_counts, call.count, size_, call.dtype);
      register_buffer(call.send, parts.total());
      register_buffer(call.recv, from.total());
      for (uint32_t r = 0; r < size_; ++r) {
        const int other = static_cast<int>(r);
        if (parts.size(r) > 0)
          check(nccl_.Send(parts.in(call.send, r), part_count(r), type, other, comm_, stream_.get()), "ncclSend");
        if (from.size(r) > 0)
          check(nccl_.Recv(from.in(call.recv, r), units(call.dtype, from.size(r)), type, other, comm_, stream_.get()),
                "ncclRecv");
      }
      return;
    }
    case CHASSIS_COMM_BROADCAST:
      register_buffer(call.recv, num_bytes);
      return check(nccl_.Broadcast(call.send, call.recv, count, type, peer, comm_, stream_.get()), "ncclBroadcast");
    case CHASSIS_COMM_SEND:
      register_buffer(call.send, num_bytes);
      return check(nccl_.Send(call.send, count, type, peer, comm_, stream_.get()), "ncclSend");
    case CHASSIS_COMM_RECV:
      register_buffer(call.recv, num_bytes);
      return check(nccl_.Recv(call.recv, count, type, peer, comm_, stream_.get()), "ncclRecv");
    case CHASSIS_COMM_BARRIER:
      return check(
          nccl_.AllReduce(barrier_word_.get(), barrier_word_.get(), 1, ncclInt32, ncclSum, comm_, stream_.get()),
          "ncclAllReduce");
  }
  throw Failure(CHASSIS_UNIMPLEMENTED, "collective ", call.op);
}

}  // namespace comm_nccl
