// The calls that this rank has in flight. A rank that has waited for a while writes its calls to the run's store, reads
// those of its neighbours and compares them, so that an error says which calls differ or which rank is missing.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/world.hpp"
#include "host/service/comm_call.hpp"

namespace chassis {

// One start of a group.
struct Flight {
  std::string group;              // "dp_shard"
  std::string group_key;          // unique in the run
  const std::vector<int>* ranks;  // the group's ranks in the run
  int rank;                       // in the group
  uint64_t sequence;              // 17 for the 17th start of the group
  CommBatch batch;

  std::string place() const;  // "#17 of dp_shard"
  std::string text() const;   // "all_gather of 4096 f32 'layers.3' (#17 of dp_shard)"
};

// The facts about ranks that wait for each other.
struct Hang {
  std::string call;                                 // the call that this rank waited for; empty: none
  std::vector<int> silent;                          // ranks of the run that did not report
  std::map<std::string, std::vector<int>> waiting;  // other calls, and the ranks that wait in them
};

// [any]
class Flights {
 public:
  explicit Flights(World& world) : world_(world) {}

  const Flight& start(Flight flight);
  // `flight` is what start returned; the reference is not valid afterwards.
  void end(const Flight& flight) noexcept;

  // Called periodically, about every 100 ms, while waiting for `flight`. Throws RemoteError if another rank failed.
  // Throws a communication error, and reports it to the other ranks at once, if another rank of the group has different
  // calls in flight or the deadline has passed. Compares nothing in the first second, or in the first half of the
  // deadline if that is shorter.
  void check(const Flight& flight, std::chrono::nanoseconds waited);

  // The facts that this rank had when check() threw. If the deadline passed on another rank, reads from the store what
  // that rank has recorded there.
  Hang hang();

 private:
  // Writes the calls in flight to the store, unless they are there already.
  void report_waiting(const Flight& waiting);
  // `other` is a rank in the group.
  void compare(const Flight& mine, int other);
  void note_call(const Flight& flight);
  void leave_hang(const std::vector<int>& silent, const std::map<std::string, std::vector<int>>& waiting,
                  const Flight& flight);
  // The error says which ranks wait for which calls, and which did not report.
  Error deadline_error(const Flight& flight, std::chrono::nanoseconds waited);

  World& world_;
  std::mutex mutex_;
  std::list<Flight> flights_;
  bool changed_ = true;                       // since the last report
  const Flight* reported_waiting_ = nullptr;  // the flight that this rank is waiting for, as the store says
  Hang hang_;
};

}  // namespace chassis
