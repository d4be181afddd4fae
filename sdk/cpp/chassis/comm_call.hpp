// Calls of collectives: helpers to build them, and helpers for backends to read them.
#pragma once

#include <span>
#include <vector>

#include "chassis/comm.h"
#include "chassis/dtype.hpp"
#include "chassis/sized.hpp"
#include "chassis/str.hpp"

CHASSIS_SDK_BEGIN

constexpr std::string_view comm_op_name(uint32_t op) noexcept {
  constexpr std::string_view kNames[] = {"unknown op", "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                         "broadcast",  "send",       "recv",           "barrier"};
  return kNames[op <= CHASSIS_COMM_BARRIER ? op : 0];
}

constexpr chassis_collective_t comm_call(uint32_t op, uint32_t dtype, const void* send, void* recv, uint64_t count,
                                         std::string_view name, uint32_t reduce = 0, int32_t peer = 0) noexcept {
  return {sizeof(chassis_collective_t), op, dtype, reduce, send, recv, count, nullptr, nullptr, peer, 0, str(name)};
}
constexpr chassis_collective_t all_gather(uint32_t dtype, const void* send, void* recv, uint64_t count,
                                          std::string_view name) noexcept {
  return comm_call(CHASSIS_COMM_ALL_GATHER, dtype, send, recv, count, name);
}
constexpr chassis_collective_t reduce_scatter(uint32_t dtype, const void* send, void* recv, uint64_t count,
                                              std::string_view name, uint32_t reduce = CHASSIS_REDUCE_SUM) noexcept {
  return comm_call(CHASSIS_COMM_REDUCE_SCATTER, dtype, send, recv, count, name, reduce);
}
constexpr chassis_collective_t all_reduce(uint32_t dtype, const void* send, void* recv, uint64_t count,
                                          std::string_view name, uint32_t reduce = CHASSIS_REDUCE_SUM) noexcept {
  return comm_call(CHASSIS_COMM_ALL_REDUCE, dtype, send, recv, count, name, reduce);
}
constexpr chassis_collective_t all_to_all(uint32_t dtype, const void* send, void* recv, uint64_t count,
                                          std::string_view name) noexcept {
  return comm_call(CHASSIS_COMM_ALL_TO_ALL, dtype, send, recv, count, name);
}
constexpr chassis_collective_t broadcast(uint32_t dtype, const void* send, void* recv, uint64_t count,
                                         std::string_view name, int32_t root) noexcept {
  return comm_call(CHASSIS_COMM_BROADCAST, dtype, send, recv, count, name, 0, root);
}
constexpr chassis_collective_t send_to(uint32_t dtype, const void* send, uint64_t count, std::string_view name,
                                       int32_t peer) noexcept {
  return comm_call(CHASSIS_COMM_SEND, dtype, send, nullptr, count, name, 0, peer);
}
constexpr chassis_collective_t recv_from(uint32_t dtype, void* recv, uint64_t count, std::string_view name,
                                         int32_t peer) noexcept {
  return comm_call(CHASSIS_COMM_RECV, dtype, nullptr, recv, count, name, 0, peer);
}
constexpr chassis_collective_t barrier(std::string_view name) noexcept {
  return comm_call(CHASSIS_COMM_BARRIER, 0, nullptr, nullptr, 0, name);
}

// The calls of a batch, whose structs may be of another minor.
inline std::vector<chassis_collective_t> read_calls(const chassis_collective_t* const* calls, uint32_t num_calls) {
  std::vector<chassis_collective_t> out(num_calls);
  for (uint32_t i = 0; i < num_calls; ++i) out[i] = read_sized(calls[i]);
  return out;
}
// The array of pointers in which a batch crosses the boundary; borrows from `calls`.
inline std::vector<const chassis_collective_t*> pointers_to(std::span<const chassis_collective_t> calls) {
  std::vector<const chassis_collective_t*> out;
  for (const chassis_collective_t& call : calls) out.push_back(&call);
  return out;
}

// The offsets and sizes in bytes of the parts of a buffer: part r goes to, or comes from, rank r.
class CommParts {
 public:
  // If counts is NULL, all parts have `count` elements.
  CommParts(const uint64_t* counts, uint64_t count, uint32_t num_parts, uint32_t dtype) : ends_(num_parts) {
    uint64_t end = 0;
    for (uint32_t r = 0; r < num_parts; ++r)
      ends_[r] = end += (counts != nullptr ? counts[r] : count) * dtype_bytes(dtype);
  }

  uint64_t begin(uint32_t part) const noexcept { return part == 0 ? 0 : ends_[part - 1]; }
  uint64_t size(uint32_t part) const noexcept { return ends_[part] - begin(part); }
  uint64_t total() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  const char* in(const void* buffer, uint32_t part) const noexcept {
    return static_cast<const char*>(buffer) + begin(part);
  }
  char* in(void* buffer, uint32_t part) const noexcept { return static_cast<char*>(buffer) + begin(part); }

 private:
  std::vector<uint64_t> ends_;
};

CHASSIS_SDK_END
