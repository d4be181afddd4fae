// What a batch of calls is to one rank: bytes that leave, bytes that arrive, what is copied and what is added up.
// Nothing is sent here.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "chassis/comm.h"

namespace comm_gloo {

struct Leaving {
  uint32_t peer;
  const char* data;
  uint64_t num_bytes;
  uint32_t tag;
};
struct Arriving {
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

// The pieces of all ranks, one on top of the other. Those of other ranks arrive in memory of the group's.
struct Reduction {
  const char* own;
  char* out;
  uint64_t count;
  uint32_t dtype;
  uint32_t reduce;
  std::vector<uint32_t> tags;    // by rank; this one's is not used
  std::vector<Leaving> results;  // leave when it is done
};

struct Schedule {
  std::vector<Leaving> sends;
  std::vector<Arriving> recvs;
  std::vector<Copy> copies;
  std::vector<Reduction> reductions;
  std::deque<std::vector<char>> scratch;  // that some of them point to
};

// Tags of 31 bits: which message between two ranks it is, and a hash of what call it belongs to. A message meets one of
// the same tag only, so calls that do not match wait for each other. Rationale: Gloo ends the process when lengths
// differ.
class Tags {
 public:
  explicit Tags(uint32_t num_ranks) : sent_(num_ranks), received_(num_ranks) {}
  uint32_t to(uint32_t peer, uint64_t hash) { return tag(sent_[peer]++, hash); }
  uint32_t from(uint32_t peer, uint64_t hash) { return tag(received_[peer]++, hash); }

 private:
  static constexpr int kCountBits = 14;  // more than are ever in flight between two ranks
  static uint32_t tag(uint32_t count, uint64_t hash) {
    return static_cast<uint32_t>(hash >> (64 - 31 + kCountBits)) << kCountBits | (count & ((1u << kCountBits) - 1));
  }
  std::vector<uint32_t> sent_, received_;
};

struct ScheduleShape {
  uint32_t size;
  uint32_t rank;
  uint32_t num_connections;  // large messages are cut into as many
  uint64_t chunk_bytes;      // of a reduction
};

Schedule make_schedule(std::span<const chassis_collective_t> calls, const ScheduleShape& shape, Tags& tags);

}  // namespace comm_gloo
