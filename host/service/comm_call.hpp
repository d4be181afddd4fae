// The calls of one start, as messages, counts and the comparison between ranks need them: names and counts are copied,
// buffers are only passed on.
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
  // `ranks` are those of the group, for messages, and outlive it. Throws a plugin error for a call that is none;
  // buffers may be NULL if nothing is moved.
  CommBatch(std::span<const chassis_collective_t* const> calls, const std::vector<int>& ranks, int rank,
            bool moves_nothing);
  CommBatch(CommBatch&&) = default;

  // As a backend reads them: buffers still those of the caller, all else this object's.
  const std::vector<chassis_collective_t>& calls() const { return calls_; }
  // As they cross; valid as long as the batch stays where it is.
  std::vector<const chassis_collective_t*> pointers() const;
  // Sent by this rank for the call, as a ring would.
  uint64_t bytes(const chassis_collective_t& call) const;

  // Equal on all ranks whose calls match, but for what passes between two ranks.
  uint64_t hash() const;
  // What this rank sends to, and expects from, each other one with SEND, RECV and unequal ALL_TO_ALL: `sent` of the one
  // is `received` of the other. By rank in the group; without those that it has nothing with.
  struct Between {
    uint64_t sent = 0, received = 0;
    bool operator==(const Between&) const = default;
  };
  std::map<int, Between> between() const;

  // Each call in words: "all_gather of 4096 f32 'layers.3'".
  std::vector<std::string> lines() const;
  // All of them: "3 calls, the first: all_gather of 4096 f32 'layers.3'".
  std::string words() const;

 private:
  int size() const { return static_cast<int>(ranks_->size()); }
  uint64_t elements(const chassis_collective_t& call) const;  // of the longer buffer of a collective
  void check(const chassis_collective_t& call, bool moves_nothing) const;
  std::string line(const chassis_collective_t& call) const;

  std::vector<chassis_collective_t> calls_;
  std::deque<std::string> names_;
  std::deque<std::vector<uint64_t>> counts_;
  const std::vector<int>* ranks_;
  int rank_;
};

}  // namespace chassis
