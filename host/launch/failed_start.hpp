// Tells the ranks of a run of a process that was to be one of them, but fails before it meets them.
#pragma once

#include "host/base/error.hpp"
#include "host/launch/launch.hpp"

namespace chassis {

// [control] For processes started by hand with RANK and WORLD_SIZE; where a launcher started them, it sees the failure
// itself. Posts the error to the store at MASTER_ADDR and MASTER_PORT, unless that run has begun. If nobody serves one
// there within 2 s, as rank 0 may be the one that failed, serves it for up to 5 s. Never throws.
void tell_waiting_ranks(const Environment& environment, const Error& error) noexcept;

// [control] Returns what `body` does; an Error that leaves it is told to the waiting ranks first.
template <class Body>
auto telling_waiting_ranks(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    tell_waiting_ranks(process_environment(), error);
    throw;
  }
}

}  // namespace chassis
