// Turns each collective into messages, copies and reductions.
#include "schedule.hpp"

#include <algorithm>

#include "chassis/comm_call.hpp"
#include "chassis/guard.hpp"

namespace comm_gloo {
namespace {

using namespace chassis;

constexpr uint64_t kSplitBytes = 256 << 10;  // messages of at least this size use all connections
constexpr uint64_t kSmallBytes = 32 << 10;   // an all_reduce of at most this size is one exchange instead of two

// splitmix64.
uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t x = (hash ^ value) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Hashes the fields that must be equal on all participating ranks.
uint64_t hash_of(const chassis_collective_t& call, uint64_t hash) {
  const bool reduces = call.op == CHASSIS_COMM_REDUCE_SCATTER || call.op == CHASSIS_COMM_ALL_REDUCE;
  hash = mix(hash, call.dtype);
  hash = mix(hash, reduces ? call.reduce : 0);
  if (call.counts == nullptr) hash = mix(hash, call.count);
  for (unsigned char c : text_of(call.name)) hash = mix(hash, c);
  return hash;
}

bool is_point_to_point(const chassis_collective_t& call) {
  return call.op == CHASSIS_COMM_SEND || call.op == CHASSIS_COMM_RECV;
}

class Scheduler {
 public:
  // `hash` is that of all collectives of the batch.
  Scheduler(const ScheduleShape& shape, Tags& tags, uint64_t hash) : shape_(shape), tags_(tags), batch_(hash) {}

  void add(const chassis_collective_t& call) {
    hash_ = is_point_to_point(call) ? hash_of(call, 0) : batch_;
    switch (call.op) {
      case CHASSIS_COMM_ALL_GATHER:
        return all_gather(call);
      case CHASSIS_COMM_REDUCE_SCATTER:
        return reduce_scatter(call);
      case CHASSIS_COMM_ALL_REDUCE:
        return bytes(call) <= kSmallBytes ? all_reduce_in_one_exchange(call) : all_reduce(call);
      case CHASSIS_COMM_ALL_TO_ALL:
        return all_to_all(call);
      case CHASSIS_COMM_BROADCAST:
        return broadcast(call);
      case CHASSIS_COMM_SEND:
        return send(static_cast<uint32_t>(call.peer), static_cast<const char*>(call.send), bytes(call));
      case CHASSIS_COMM_RECV:
        return recv(static_cast<uint32_t>(call.peer), static_cast<char*>(call.recv), bytes(call));
      case CHASSIS_COMM_BARRIER:
        return barrier();
    }
    throw Failure(CHASSIS_UNIMPLEMENTED, "collective ", call.op);
  }

  Schedule take() { return std::move(out_); }

 private:
  static uint64_t bytes(const chassis_collective_t& call) { return call.count * dtype_bytes(call.dtype); }

  template <typename Body>
  void for_each_peer(Body&& body) const {
    // Each rank starts with the next one, so that they do not all send to the same rank.
    for (uint32_t step = 1; step < shape_.size; ++step) body((shape_.rank + step) % shape_.size);
  }

  // The tag of a message that belongs to a part of `part_bytes`.
  uint32_t tag_to(uint32_t peer, uint64_t part_bytes) { return tags_.to(peer, mix(hash_, part_bytes)); }
  uint32_t tag_from(uint32_t peer, uint64_t part_bytes) { return tags_.from(peer, mix(hash_, part_bytes)); }

  // Calls body(offset, length) for the messages that together have num_bytes.
  template <typename Body>
  void for_each_message(uint64_t num_bytes, Body&& body) const {
    const uint64_t parts = num_bytes < kSplitBytes ? 1 : shape_.num_connections;
    const uint64_t step = (num_bytes + parts - 1) / parts;
    for (uint64_t at = 0; at < num_bytes; at += step) body(at, std::min(step, num_bytes - at));
  }
  void send(uint32_t peer, const char* data, uint64_t num_bytes) {
    for_each_message(num_bytes, [&](uint64_t at, uint64_t length) {
      out_.sends.push_back({peer, data + at, length, tag_to(peer, num_bytes)});
    });
  }
  void recv(uint32_t peer, char* data, uint64_t num_bytes) {
    for_each_message(num_bytes, [&](uint64_t at, uint64_t length) {
      out_.recvs.push_back({peer, data + at, length, tag_from(peer, num_bytes)});
    });
  }
  void copy(const char* from, char* to, uint64_t num_bytes) {
    if (from != to && num_bytes > 0) out_.copies.push_back({from, to, num_bytes});
  }
  char* scratch(uint64_t num_bytes) { return out_.scratch.emplace_back(num_bytes).data(); }

  template <typename Body>
  void for_each_chunk(uint64_t num_bytes, Body&& body) const {
    for (uint64_t at = 0; at < num_bytes; at += shape_.chunk_bytes)
      body(at, std::min(shape_.chunk_bytes, num_bytes - at));
  }
  void send_in_chunks(uint32_t peer, const char* data, uint64_t num_bytes) {
    for_each_chunk(num_bytes, [&](uint64_t at, uint64_t length) {
      out_.sends.push_back({peer, data + at, length, tag_to(peer, num_bytes)});
    });
  }
  // Reduces this rank's piece with those that the others send in chunks.
  void reduce(const chassis_collective_t& call, const char* own, char* out, uint64_t num_bytes) {
    for_each_chunk(num_bytes, [&](uint64_t at, uint64_t length) {
      Reduction& part = out_.reductions.emplace_back(
          Reduction{own + at, out + at, length / dtype_bytes(call.dtype), call.dtype, call.reduce, {}, {}});
      part.tags.resize(shape_.size);
      for_each_peer([&](uint32_t peer) { part.tags[peer] = tag_from(peer, num_bytes); });
    });
  }

  void all_gather(const chassis_collective_t& call) {
    const CommParts parts(call.counts, call.count, shape_.size, call.dtype);
    const auto* own = static_cast<const char*>(call.send);
    for_each_peer([&](uint32_t peer) {
      recv(peer, parts.in(call.recv, peer), parts.size(peer));
      send(peer, own, parts.size(shape_.rank));
    });
    copy(own, parts.in(call.recv, shape_.rank), parts.size(shape_.rank));
  }

  void reduce_scatter(const chassis_collective_t& call) {
    const CommParts parts(call.counts, call.count, shape_.size, call.dtype);
    for_each_peer([&](uint32_t peer) { send_in_chunks(peer, parts.in(call.send, peer), parts.size(peer)); });
    reduce(call, parts.in(call.send, shape_.rank), static_cast<char*>(call.recv), parts.size(shape_.rank));
  }

  // A reduce_scatter, then an all_gather of its results.
  void all_reduce(const chassis_collective_t& call) {
    std::vector<uint64_t> counts(shape_.size);
    for (uint64_t r = 0; r < shape_.size; ++r) {
      counts[r] = call.count / shape_.size + (r < call.count % shape_.size ? 1 : 0);
    }
    const CommParts parts(counts.data(), 0, shape_.size, call.dtype);
    for_each_peer([&](uint32_t peer) { send_in_chunks(peer, parts.in(call.send, peer), parts.size(peer)); });
    const size_t first = out_.reductions.size();
    reduce(call, parts.in(call.send, shape_.rank), parts.in(call.recv, shape_.rank), parts.size(shape_.rank));
    for_each_peer([&](uint32_t peer) {
      for (size_t i = first; i < out_.reductions.size(); ++i) {
        Reduction& part = out_.reductions[i];
        part.results.push_back(
            {peer, part.out, part.count * dtype_bytes(part.dtype), tag_to(peer, parts.size(shape_.rank))});
      }
      // Safe in place: the peer sends its result only after it has received what this rank sent from this memory.
      for_each_chunk(parts.size(peer), [&](uint64_t at, uint64_t length) {
        out_.recvs.push_back({peer, parts.in(call.recv, peer) + at, length, tag_from(peer, parts.size(peer))});
      });
    });
  }

  // Every rank receives all pieces and adds them up in the same order.
  void all_reduce_in_one_exchange(const chassis_collective_t& call) {
    const char* own = static_cast<const char*>(call.send);
    if (call.send == call.recv) {  // the result may be written before the last peer has received this rank's piece
      char* kept = scratch(bytes(call));
      std::copy_n(own, bytes(call), kept);
      own = kept;
    }
    for_each_peer([&](uint32_t peer) { send_in_chunks(peer, own, bytes(call)); });
    reduce(call, own, static_cast<char*>(call.recv), bytes(call));
  }

  void all_to_all(const chassis_collective_t& call) {
    const CommParts to(call.counts, call.count, shape_.size, call.dtype);
    const CommParts from(call.recv_counts, call.count, shape_.size, call.dtype);
    for_each_peer([&](uint32_t peer) {
      recv(peer, from.in(call.recv, peer), from.size(peer));
      send(peer, to.in(call.send, peer), to.size(peer));
    });
    copy(to.in(call.send, shape_.rank), from.in(call.recv, shape_.rank), to.size(shape_.rank));
  }

  void broadcast(const chassis_collective_t& call) {
    const auto root = static_cast<uint32_t>(call.peer);
    if (root != shape_.rank) return recv(root, static_cast<char*>(call.recv), bytes(call));
    for_each_peer([&](uint32_t peer) { send(peer, static_cast<const char*>(call.send), bytes(call)); });
    copy(static_cast<const char*>(call.send), static_cast<char*>(call.recv), bytes(call));
  }

  void barrier() {
    char* bytes = scratch(shape_.size);
    for_each_peer([&](uint32_t peer) {
      recv(peer, bytes + peer, 1);
      send(peer, bytes + shape_.rank, 1);
    });
  }

  const ScheduleShape& shape_;
  Tags& tags_;
  const uint64_t batch_;
  uint64_t hash_ = 0;  // of the current call
  Schedule out_;
};

}  // namespace

Schedule make_schedule(std::span<const chassis_collective_t> calls, const ScheduleShape& shape, Tags& tags) {
  uint64_t hash = 0;
  for (const auto& call : calls) {
    if (is_point_to_point(call)) continue;
    hash = hash_of(call, mix(hash, call.op));
    if (call.op == CHASSIS_COMM_BROADCAST) hash = mix(hash, static_cast<uint64_t>(call.peer));
    if (call.counts == nullptr || call.op == CHASSIS_COMM_ALL_TO_ALL) continue;
    for (uint32_t r = 0; r < shape.size; ++r) hash = mix(hash, call.counts[r]);
  }
  Scheduler scheduler(shape, tags, hash);
  for (const auto& call : calls) {
    if (!is_point_to_point(call)) scheduler.add(call);
  }
  // SENDs and RECVs come last: their place among the other calls may differ between the two ranks.
  for (const auto& call : calls) {
    if (is_point_to_point(call)) scheduler.add(call);
  }
  return scheduler.take();
}

}  // namespace comm_gloo
