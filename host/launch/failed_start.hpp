// Tells the waiting ranks of a run that a process which was to be one of them has failed before it met them.
#pragma once

#include "host/base/error.hpp"
#include "host/launch/launch.hpp"

namespace chassis {

// [control] For processes started by hand with RANK and WORLD_SIZE; if a launcher started them, it sees the failure
// itself. Posts the error to the store at MASTER_ADDR and MASTER_PORT, unless that run has begun. If no store answers
// there within 2 s, since rank 0 may be the process that failed, serves one for up to 5 s. Never throws.
void tell_waiting_ranks(const Environment& environment, const Error& error) noexcept;

// [control] Returns the result of `body`. An Error that it throws is first reported to the waiting ranks.
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
