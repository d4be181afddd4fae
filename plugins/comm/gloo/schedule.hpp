// One rank's schedule of a batch of calls: what it sends, receives, copies and reduces. Nothing is sent here.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "chassis/comm.h"

namespace comm_gloo {

struct Send {
  uint32_t peer;
  const char* data;
  uint64_t num_bytes;
  uint32_t tag;
};
struct Recv {
  uint32_t peer;
  char* data;
  uint64_t num_bytes;
  uint32_t tag;
};
struct Copy {
  const char* from;
  char* to;
  uint64_t num_bytes;
};

// Reduces the pieces of all ranks, element by element. The group's scratch memory receives those of other ranks.
struct Reduction {
  const char* own;
  char* out;
  uint64_t count;
  uint32_t dtype;
  uint32_t reduce;
  std::vector<uint32_t> tags;  // by rank; this rank's is not used
  std::vector<Send> results;   // sent when the reduction is done
};

struct Schedule {
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  std::vector<Copy> copies;
  std::vector<Reduction> reductions;
  std::deque<std::vector<char>> scratch;  // memory that some of the above point to
};

// Tags of 31 bits: a count of the messages between two ranks, and a hash of the call that the message belongs to. Gloo
// matches only equal tags, so calls that do not match wait for each other. Rationale: Gloo ends the process when the
// lengths of matched messages differ.
class Tags {
 public:
  explicit Tags(uint32_t num_ranks) : sent_(num_ranks), received_(num_ranks) {}
  uint32_t to(uint32_t peer, uint64_t hash) { return tag(sent_[peer]++, hash); }
  uint32_t from(uint32_t peer, uint64_t hash) { return tag(received_[peer]++, hash); }

 private:
  static constexpr int kCountBits = 14;  // counts more messages than are ever in flight between two ranks
  static uint32_t tag(uint32_t count, uint64_t hash) {
    return static_cast<uint32_t>(hash >> (64 - 31 + kCountBits)) << kCountBits | (count & ((1u << kCountBits) - 1));
  }
  std::vector<uint32_t> sent_, received_;
};

struct ScheduleShape {
  uint32_t size;
  uint32_t rank;
  uint32_t num_connections;  // large messages are split into this many
  uint64_t chunk_bytes;      // of a reduction
};

Schedule make_schedule(std::span<const chassis_collective_t> calls, const ScheduleShape& shape, Tags& tags);

}  // namespace comm_gloo
