// Checks, hashes and texts of calls.
#include "host/service/comm_call.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"
#include "host/state/dtype.hpp"

namespace chassis {
namespace {

bool reduces(uint32_t op) { return op == CHASSIS_COMM_REDUCE_SCATTER || op == CHASSIS_COMM_ALL_REDUCE; }
bool is_point_to_point(uint32_t op) { return op == CHASSIS_COMM_SEND || op == CHASSIS_COMM_RECV; }

uint64_t sum(const uint64_t* counts, int size) { return std::accumulate(counts, counts + size, uint64_t{0}); }

template <typename... Fields>
uint64_t hash_of(uint64_t seed, std::string_view name, Fields... fields) {
  const std::array<uint64_t, sizeof...(Fields)> all = {static_cast<uint64_t>(fields)...};
  return hash64(name, hash64({reinterpret_cast<const char*>(all.data()), sizeof all}, seed));
}

std::string_view reduce_name(uint32_t reduce) {
  switch (reduce) {
    case CHASSIS_REDUCE_SUM:
      return "sum";
    case CHASSIS_REDUCE_AVG:
      return "avg";
    case CHASSIS_REDUCE_MAX:
      return "max";
  }
  return "unknown reduction";
}

}  // namespace

std::string_view comm_op_name(uint32_t op) {
  constexpr std::array<std::string_view, 9> kNames = {
      "unknown op", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send", "recv", "barrier"};
  return kNames[op < kNames.size() ? op : 0];
}

CommBatch::CommBatch(std::span<const chassis_collective_t* const> calls, const std::vector<int>& ranks, int rank,
                     bool moves_nothing)
    : ranks_(&ranks), rank_(rank) {
  calls_.reserve(calls.size());
  for (const chassis_collective_t* given : calls) {
    chassis_collective_t call = read_struct(given, "a collective");
    call.struct_size = sizeof call;
    call.name = str_of(names_.emplace_back(view_of(call.name)));
    for (const uint64_t** counts : {&call.counts, &call.recv_counts}) {
      if (*counts) *counts = counts_.emplace_back(*counts, *counts + ranks.size()).data();
    }
    check(call, moves_nothing);
    calls_.push_back(call);
  }
}

std::vector<const chassis_collective_t*> CommBatch::pointers() const {
  std::vector<const chassis_collective_t*> out;
  for (const chassis_collective_t& call : calls_) out.push_back(&call);
  return out;
}

void CommBatch::check(const chassis_collective_t& call, bool moves_nothing) const {
  const auto bad = [&](const std::string& why) {
    return Error(ExitCode::kPlugin, fmt::format("{} '{}': {}", comm_op_name(call.op), view_of(call.name), why));
  };
  if (call.op < CHASSIS_COMM_ALL_GATHER || call.op > CHASSIS_COMM_BARRIER)
    throw bad(fmt::format("op {} is unknown", call.op));
  if (call.op == CHASSIS_COMM_BARRIER) return;
  const auto dtype = static_cast<Dtype>(call.dtype);
  if (size_bytes(dtype) == 0) throw bad(fmt::format("dtype {} is unknown", call.dtype));
  if (reduces(call.op)) {
    if (call.reduce < CHASSIS_REDUCE_SUM || call.reduce > CHASSIS_REDUCE_MAX)
      throw bad(fmt::format("reduction {} is unknown", call.reduce));
    if (!is_float(dtype) && dtype != Dtype::i32 && dtype != Dtype::i64)
      throw bad(fmt::format("{} cannot be reduced; floating types, i32 and i64 can", dtype_name(dtype)));
    if (!is_float(dtype) && call.reduce == CHASSIS_REDUCE_AVG)
      throw bad(fmt::format("{} cannot be averaged; use sum or max", dtype_name(dtype)));
  }
  if (call.op == CHASSIS_COMM_BROADCAST || is_point_to_point(call.op)) {
    if (call.peer < 0 || call.peer >= size())
      throw bad(fmt::format("peer {} is not in the group, which has {} ranks", call.peer, size()));
    if (is_point_to_point(call.op) && call.peer == rank_) throw bad("the peer is the calling rank itself");
  }
  const bool has_parts = call.op == CHASSIS_COMM_ALL_GATHER || call.op == CHASSIS_COMM_REDUCE_SCATTER;
  if (call.op == CHASSIS_COMM_ALL_TO_ALL ? !call.counts != !call.recv_counts
                                         : call.recv_counts || (call.counts && !has_parts)) {
    throw bad("this op does not use these counts, or one of counts and recv_counts is missing");
  }
  if (moves_nothing) return;
  const auto needs = [&](const void* buffer, const char* name, uint64_t count) {
    if (count > 0 && !buffer) throw bad(fmt::format("{} is NULL, expected {} elements", name, count));
  };
  const uint64_t own = call.counts ? call.counts[rank_] : call.count, all = elements(call);
  switch (call.op) {
    case CHASSIS_COMM_ALL_GATHER:
      return needs(call.send, "send", own), needs(call.recv, "recv", all);
    case CHASSIS_COMM_REDUCE_SCATTER:
      return needs(call.send, "send", all), needs(call.recv, "recv", own);
    case CHASSIS_COMM_ALL_TO_ALL:
      needs(call.send, "send", call.counts ? sum(call.counts, size()) : all);
      return needs(call.recv, "recv", call.counts ? sum(call.recv_counts, size()) : all);
    case CHASSIS_COMM_BROADCAST:
      if (call.peer == rank_) needs(call.send, "send", call.count);
      return needs(call.recv, "recv", call.count);
    case CHASSIS_COMM_SEND:
      return needs(call.send, "send", call.count);
    case CHASSIS_COMM_RECV:
      return needs(call.recv, "recv", call.count);
    default:
      return needs(call.send, "send", call.count), needs(call.recv, "recv", call.count);
  }
}

uint64_t CommBatch::elements(const chassis_collective_t& call) const {
  switch (call.op) {
    case CHASSIS_COMM_ALL_GATHER:
    case CHASSIS_COMM_REDUCE_SCATTER:
    case CHASSIS_COMM_ALL_TO_ALL:
      return call.counts ? sum(call.counts, size()) : call.count * static_cast<uint64_t>(size());
    default:
      return call.count;
  }
}

uint64_t CommBatch::hash() const {
  uint64_t out = 0;
  for (const chassis_collective_t& call : calls_) {
    if (is_point_to_point(call.op)) continue;
    const bool unequal = call.counts != nullptr;
    out = hash_of(out, view_of(call.name), call.op, call.dtype, reduces(call.op) ? call.reduce : 0,
                  call.op == CHASSIS_COMM_BROADCAST ? call.peer : 0, unequal ? 0 : call.count, unequal);
    if (unequal && call.op != CHASSIS_COMM_ALL_TO_ALL)
      out = hash64({reinterpret_cast<const char*>(call.counts), sizeof(uint64_t) * ranks_->size()}, out);
  }
  return out;
}

std::map<int, CommBatch::PeerHashes> CommBatch::peer_hashes() const {
  std::map<int, PeerHashes> out;
  const auto add = [](uint64_t& hash, const chassis_collective_t& call, uint64_t count) {
    hash = hash_of(hash, view_of(call.name), call.op == CHASSIS_COMM_ALL_TO_ALL, call.dtype, count);
  };
  for (const chassis_collective_t& call : calls_) {
    if (call.op == CHASSIS_COMM_SEND) add(out[call.peer].sent, call, call.count);
    if (call.op == CHASSIS_COMM_RECV) add(out[call.peer].received, call, call.count);
    if (call.op != CHASSIS_COMM_ALL_TO_ALL || !call.counts) continue;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      add(out[peer].sent, call, call.counts[peer]);
      add(out[peer].received, call, call.recv_counts[peer]);
    }
  }
  return out;
}

uint64_t CommBatch::bytes(const chassis_collective_t& call) const {
  const uint64_t all = elements(call) * static_cast<uint64_t>(size_bytes(static_cast<Dtype>(call.dtype)));
  const auto num = static_cast<uint64_t>(size());
  switch (call.op) {
    case CHASSIS_COMM_ALL_REDUCE:
      return 2 * (all / num * (num - 1) + all % num * (num - 1) / num);
    case CHASSIS_COMM_ALL_TO_ALL: {
      const uint64_t own = call.counts ? call.counts[rank_] : call.count;
      return all - own * static_cast<uint64_t>(size_bytes(static_cast<Dtype>(call.dtype)));
    }
    case CHASSIS_COMM_SEND:
      return all;
    case CHASSIS_COMM_RECV:
    case CHASSIS_COMM_BARRIER:
      return 0;
    default:
      return all / num * (num - 1) + all % num * (num - 1) / num;
  }
}

std::string CommBatch::call_text(const chassis_collective_t& call) const {
  std::string text(comm_op_name(call.op));
  if (reduces(call.op) && call.reduce != CHASSIS_REDUCE_SUM) text += fmt::format(" ({})", reduce_name(call.reduce));
  if (call.op != CHASSIS_COMM_BARRIER) {
    const std::string_view dtype = dtype_name(static_cast<Dtype>(call.dtype));
    const auto list = [&](const uint64_t* counts) {
      constexpr int kShown = 8;
      return fmt::format("{}{}", fmt::join(counts, counts + std::min(size(), kShown), ", "),
                         size() > kShown ? ", …" : "");
    };
    if (call.op == CHASSIS_COMM_ALL_TO_ALL && call.counts) {
      text += fmt::format(" of {} {}, receiving {}", list(call.counts), dtype, list(call.recv_counts));
    } else if (call.counts) {
      text += fmt::format(" of {} {} in total", list(call.counts), dtype);
    } else {
      text += fmt::format(" of {} {}", call.count, dtype);
    }
  }
  if (call.name.len > 0) text += fmt::format(" '{}'", view_of(call.name));
  if (call.op == CHASSIS_COMM_BROADCAST || call.op == CHASSIS_COMM_RECV)
    text += fmt::format(" from rank {}", (*ranks_)[static_cast<size_t>(call.peer)]);
  if (call.op == CHASSIS_COMM_SEND) text += fmt::format(" to rank {}", (*ranks_)[static_cast<size_t>(call.peer)]);
  return text;
}

std::vector<std::string> CommBatch::call_texts() const {
  std::vector<std::string> out;
  for (const chassis_collective_t& call : calls_) out.push_back(call_text(call));
  return out;
}

std::string CommBatch::text() const {
  if (calls_.empty()) return "no call";
  if (calls_.size() == 1) return call_text(calls_[0]);
  return fmt::format("{} calls, the first: {}", calls_.size(), call_text(calls_[0]));
}

}  // namespace chassis
