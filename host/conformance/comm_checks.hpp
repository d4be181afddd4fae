// Conformance tests of a communication backend against chassis/comm.h. Ranks are threads of this process, each with an
// instance, over a store in memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "chassis/kind/comm.h"

namespace chassis {

struct CommSubject {
  const chassis_comm_backend_t* table = nullptr;
  chassis_instance* self = nullptr;
  std::string label;
};

// Why the backend cannot be tested on this machine, such as a missing device; empty if it can.
std::string comm_unsupported_reason(const CommSubject& backend);

// [control] All failures, with both numbers; empty if none. `ranks` has one instance for each rank, at least 2. Runs on
// the CPU, over the loopback interface if the backend needs a network. Tests:
//   - all collectives with every dtype they accept, 0, 1 and many elements, equal and unequal parts, and in place if
//     allowed: each alone, all in one start, and all in flight at once and waited for in reverse order
//   - reductions cover all ranks, within the rounding of the dtype, with the same bits on all ranks
//   - send buffers stay unchanged; a work is done after its wait; several groups work at the same time
// A backend that moves nothing receives the same calls without buffers, as each of four ranks in turn.
std::vector<std::string> comm_failures(std::span<const CommSubject> ranks);

}  // namespace chassis
