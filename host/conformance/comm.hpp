// Whether a backend of collectives computes what chassis/comm.h says: ranks as threads of this process, each with an
// instance of its own, over a store in memory.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "chassis/kind/comm.h"

namespace chassis {

struct CommSubject {
  const chassis_comm_backend_t* table = nullptr;
  chassis_instance* self = nullptr;
  std::string who;
};

// Why it has nothing to compare with here, such as no memory of a device that this machine lacks; empty if it has.
std::string comm_not_comparable(const CommSubject& backend);

// [control] Everything that is wrong, with both numbers; empty if nothing is. `ranks` has one instance for each rank,
// at least 2. On the CPU, over the loopback if the backend needs a network.
//   - all collectives in every dtype that they take, of 0, 1 and many elements, in equal and unequal parts, in place
//   where
//     that is allowed, each alone, all as one start, and all in flight at once and waited for in reverse
//   - sums are those of all ranks, within their dtype's rounding, and the same bits everywhere
//   - what is sent stays as it was; a work that was waited for is done; groups of different ranks live side by side
// A backend that moves nothing is asked for the same calls as one rank of four, without buffers.
std::vector<std::string> comm_failures(std::span<const CommSubject> ranks);

}  // namespace chassis
