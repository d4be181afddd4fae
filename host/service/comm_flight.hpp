// What this rank has in flight, and how ranks that wait for each other find out why: those that have waited for a while
// write what they wait for to the store, read what their neighbours wait for, and set both side by side.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
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
  std::string group_key;          // of this very group
  const std::vector<int>* ranks;  // of the group
  int rank;                       // in the group
  uint64_t sequence;              // 17: the 17th start of the group
  CommBatch batch;

  std::string place() const;  // "#17 of dp_shard"
  std::string text() const;   // "all_gather of 4096 f32 'layers.3' (#17 of dp_shard)"
};

// [any]
class Flights {
 public:
  explicit Flights(World& world) : world_(world) {}

  const Flight& start(Flight flight);
  // Of an object that start returned; it is gone afterwards.
  void end(const Flight& flight) noexcept;

  // For who has waited for `flight` so long, about every 100 ms. Throws RemoteError if another rank failed; a
  // communication error, which the others are told at once, if a rank that it should meet there has other calls in
  // flight, or the deadline is over. In the first second (half of the deadline, if that is less) nothing is compared.
  void look(const Flight& flight, std::chrono::nanoseconds waited);

 private:
  void tell(const Flight& waiting);
  void compare(const Flight& mine, int other);
  // Who waits for what, and who gave no sign.
  Error late(const Flight& flight, std::chrono::nanoseconds waited);

  World& world_;
  std::mutex mutex_;
  std::list<Flight> flights_;
  bool changed_ = true;                   // since it was told
  const Flight* told_waiting_ = nullptr;  // as the store says
};

}  // namespace chassis
