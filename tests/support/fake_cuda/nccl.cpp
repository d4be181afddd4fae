// A fake of NCCL's library, with the functions that plugins/comm/nccl uses. Collectives give real results: sums are
// computed in the order of the ranks, those of half types in fp32. The calls of a group must be of one communicator.
// The faults of fault.hpp also have the function "collective": a group of calls that never ends.
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "exchange.hpp"
#include "fault.hpp"
#include "stream.hpp"

namespace fake_cuda {
namespace {

// Shared by the communicator and its collectives in flight.
struct Members {
  Members(const std::string& name, int rank, int size) : rank(rank), size(size), rings(name, size) {}
  const int rank, size;
  Rings rings;
  std::atomic<bool> is_aborted = false;
  std::atomic<ncclResult_t> async_error = ncclSuccess;
};

struct Group {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::shared_ptr<Exchange> exchange;
  ncclResult_t result = ncclSuccess;
};
thread_local Group* open_group = nullptr;

ncclResult_t injected(const char* function) { return static_cast<ncclResult_t>(fault().result_of(function)); }

uint64_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

template <typename T, typename Sum = T>
void reduce_as(const std::vector<const char*>& parts, char* out, size_t count, ncclRedOp_t op) {
  const auto value = [&](size_t rank, size_t i) {
    T element;
    std::memcpy(&element, parts[rank] + i * sizeof(T), sizeof(T));
    return static_cast<Sum>(element);
  };
  for (size_t i = 0; i < count; ++i) {
    Sum sum = value(0, i);
    for (size_t rank = 1; rank < parts.size(); ++rank) {
      const Sum next = value(rank, i);
      sum = op != ncclMax ? sum + next : sum < next ? next : sum;
    }
    if (op == ncclAvg) sum /= static_cast<Sum>(parts.size());
    const T result = static_cast<T>(sum);
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

void reduce(const std::vector<const char*>& parts, char* out, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat32:
      return reduce_as<float>(parts, out, count, op);
    case ncclFloat64:
      return reduce_as<double>(parts, out, count, op);
    case ncclFloat16:
      return reduce_as<__half, float>(parts, out, count, op);
    case ncclBfloat16:
      return reduce_as<__nv_bfloat16, float>(parts, out, count, op);
    case ncclInt32:
      return reduce_as<int32_t>(parts, out, count, op);
    default:
      return reduce_as<int64_t>(parts, out, count, op);
  }
}

const char* readable(const void* memory, cudaStream_t stream) {
  return static_cast<const char*>(stream->address_for_tasks(memory));
}
char* writable(void* memory, cudaStream_t stream) { return static_cast<char*>(stream->address_for_tasks(memory)); }

// NULL has no bytes.
void copy(void* to, const void* from, uint64_t num_bytes) {
  if (num_bytes > 0) std::memmove(to, from, num_bytes);
}

// Receives this rank's part from all ranks, and writes the sum to `out` at the end: it may be one of the buffers that
// are still being sent.
void receive_and_reduce(Exchange& exchange, const Members& members, const char* own, char* out, size_t count,
                        ncclDataType_t type, ncclRedOp_t op) {
  const uint64_t num_bytes = count * bytes_of(type);
  std::vector<const char*> parts;
  for (int rank = 0; rank < members.size; ++rank) {
    char* const part = exchange.buffer(num_bytes);
    parts.push_back(part);
    if (rank == members.rank)
      exchange.then([=] { copy(part, own, num_bytes); });
    else
      exchange.receive(rank, part, num_bytes);
  }
  exchange.then([=] { reduce(parts, out, count, type, op); });
}

void run(Members& members, Exchange& exchange, const CUstream_st& stream, bool ends) {
  while (!members.is_aborted && !stream.has_failed()) {
    const bool has_moved = ends && exchange.advance(members.rings, members.rank);
    if (ends && exchange.is_done()) return exchange.finish();
    if (!has_moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

struct ncclComm {
  std::shared_ptr<Members> members;
};

namespace {

// Adds a call to the open group.
template <typename Add>
ncclResult_t add_call(const char* function, ncclComm_t comm, cudaStream_t stream, Add&& add) {
  if (open_group == nullptr || (open_group->comm != nullptr && open_group->comm != comm)) return ncclInvalidUsage;
  Group& group = *open_group;
  const ncclResult_t result = injected(function);
  if (result != ncclSuccess) return group.result = result;
  const Members& members = *comm->members;
  if (!group.exchange) group.exchange = std::make_shared<Exchange>(members.size);
  group.comm = comm;
  group.stream = stream;
  add(*group.exchange, members);
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> num_ids = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/chassis-fake-nccl-%d-%d", getpid(), ++num_ids);
  return injected("ncclGetUniqueId");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  if (const ncclResult_t result = injected("ncclCommInitRankConfig"); result != ncclSuccess) return result;
  *comm = new ncclComm{std::make_shared<Members>(id.internal, rank, size)};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Members& members = *comm->members;
  if (const ncclResult_t result = injected("ncclCommGetAsyncError"); result != ncclSuccess)
    members.async_error = result;
  *error = members.async_error;
  if (*error == ncclSuccess && !members.rings.are_complete()) *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->members->is_aborted = true;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return injected("ncclCommRegister");
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGroupStart() {
  open_group = new Group;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::unique_ptr<Group> group(open_group);
  open_group = nullptr;
  if (group->result != ncclSuccess) return group->result;
  if (const ncclResult_t result = injected("ncclGroupEnd"); result != ncclSuccess) return result;
  if (!group->exchange) return ncclSuccess;
  const bool ends = injected("collective") == ncclSuccess;
  group->stream->enqueue([members = group->comm->members, exchange = group->exchange, stream = group->stream, ends] {
    run(*members, *exchange, *stream, ends);
  });
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  send = readable(send, stream);
  return add_call("ncclSend", comm, stream,
                  [&](Exchange& exchange, const Members&) { exchange.send(peer, send, count * bytes_of(type)); });
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  recv = writable(recv, stream);
  return add_call("ncclRecv", comm, stream,
                  [&](Exchange& exchange, const Members&) { exchange.receive(peer, recv, count * bytes_of(type)); });
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  send = readable(send, stream);
  recv = writable(recv, stream);
  return add_call("ncclBroadcast", comm, stream, [&](Exchange& exchange, const Members& members) {
    const uint64_t num_bytes = count * bytes_of(type);
    if (members.rank != root) return exchange.receive(root, recv, num_bytes);
    for (int rank = 0; rank < members.size; ++rank)
      if (rank != root) exchange.send(rank, send, num_bytes);
    exchange.then([=] { copy(recv, send, num_bytes); });
  });
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  send = readable(send, stream);
  recv = writable(recv, stream);
  return add_call("ncclAllGather", comm, stream, [&](Exchange& exchange, const Members& members) {
    const uint64_t num_bytes = count * bytes_of(type);
    for (int rank = 0; rank < members.size; ++rank) {
      char* const part = static_cast<char*>(recv) + static_cast<uint64_t>(rank) * num_bytes;
      if (rank == members.rank) {
        exchange.then([=] { copy(part, send, num_bytes); });
        continue;
      }
      exchange.send(rank, send, num_bytes);
      exchange.receive(rank, part, num_bytes);
    }
  });
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  send = readable(send, stream);
  recv = writable(recv, stream);
  return add_call("ncclAllReduce", comm, stream, [&](Exchange& exchange, const Members& members) {
    for (int rank = 0; rank < members.size; ++rank)
      if (rank != members.rank) exchange.send(rank, send, count * bytes_of(type));
    receive_and_reduce(exchange, members, static_cast<const char*>(send), static_cast<char*>(recv), count, type, op);
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  send = readable(send, stream);
  recv = writable(recv, stream);
  return add_call("ncclReduceScatter", comm, stream, [&](Exchange& exchange, const Members& members) {
    const auto part = [&](int rank) {
      return static_cast<const char*>(send) + static_cast<uint64_t>(rank) * count * bytes_of(type);
    };
    for (int rank = 0; rank < members.size; ++rank)
      if (rank != members.rank) exchange.send(rank, part(rank), count * bytes_of(type));
    receive_and_reduce(exchange, members, part(members.rank), static_cast<char*>(recv), count, type, op);
  });
}

ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  send = readable(send, stream);
  recv = writable(recv, stream);
  return add_call("ncclReduce", comm, stream, [&](Exchange& exchange, const Members& members) {
    if (members.rank != root) return exchange.send(root, send, count * bytes_of(type));
    receive_and_reduce(exchange, members, static_cast<const char*>(send), static_cast<char*>(recv), count, type, op);
  });
}
