// The calls of one start, for the backend, for messages and counters, and for the comparison between ranks. Names and
// counts are copied; buffers belong to the caller.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/comm.h"

namespace chassis {

// "all_gather"
std::string_view comm_op_name(uint32_t op);

class CommBatch {
 public:
  // `ranks` are the group's, for messages, and outlive the batch. Throws a plugin error for an invalid call. Buffers
  // may be NULL if nothing is moved.
  CommBatch(std::span<const chassis_collective_t* const> calls, const std::vector<int>& ranks, int rank,
            bool moves_nothing);
  CommBatch(CommBatch&&) = default;

  // Their buffers are the caller's; all else belongs to this object.
  const std::vector<chassis_collective_t>& calls() const { return calls_; }
  // For the backend; valid until the batch is moved or destroyed.
  std::vector<const chassis_collective_t*> pointers() const;
  // The number of bytes that this rank sends for the call in a ring.
  uint64_t bytes(const chassis_collective_t& call) const;

  // Equal on all ranks if their calls match. Leaves out what only two ranks must agree on: see peer_hashes().
  uint64_t hash() const;
  // Hashes of what this rank sends to and receives from another by SEND, RECV and unequal ALL_TO_ALL. If calls match,
  // `sent` of one rank equals `received` of the other.
  struct PeerHashes {
    uint64_t sent = 0, received = 0;
    bool operator==(const PeerHashes&) const = default;
  };
  // Keyed by rank in the group; ranks without such calls are left out.
  std::map<int, PeerHashes> peer_hashes() const;

  // Each call: "all_gather of 4096 f32 'layers.3'".
  std::vector<std::string> call_texts() const;
  // All of them: "3 calls, the first: all_gather of 4096 f32 'layers.3'".
  std::string text() const;

 private:
  int size() const { return static_cast<int>(ranks_->size()); }
  uint64_t elements(const chassis_collective_t& call) const;  // in the longer buffer
  void check(const chassis_collective_t& call, bool moves_nothing) const;
  std::string call_text(const chassis_collective_t& call) const;

  std::vector<chassis_collective_t> calls_;
  std::deque<std::string> names_;
  std::deque<std::vector<uint64_t>> counts_;
  const std::vector<int>* ranks_;
  int rank_;
};

}  // namespace chassis
