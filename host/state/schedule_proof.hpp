// Proves before training that a schedule is complete and that its ranks never wait for each other. A fault names rank
// and entry; entries are counted from 0.
#pragma once

#include <string>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis {

struct ScheduleFault {
  enum class Cause {
    kOutOfRange,  // a chunk, a micro-batch, or the number of lists
    kMissing,     // a stage lacks a forward or a backward of a micro-batch
    kDoubled,     // a second forward or backward, or a backward in addition to a backward_inputs
    kLinkOrder,   // a rank takes what another sends in an order other than that of sending
    kDeadlock,    // an entry never runs
  };

  Cause cause = Cause::kMissing;
  int rank = -1;   // -1: the schedule
  int entry = -1;  // -1: the rank's list
  std::string message;
};

// The faults of one schedule, first those that can be seen in one rank's list. The order of entries is checked only if
// they are complete.
//
// Stages on two ranks hand their results to each other through links, one for each sender, receiver and direction
// (activations or gradients). A link delivers in the order of sending, so that a group of two ranks whose calls are in
// order can serve as one. A send does not block its rank.
std::vector<ScheduleFault> schedule_faults(const Schedule& schedule, size_t limit = 16);
// Throws a config error with the first fault and the number of the others.
void prove_schedule(const Schedule& schedule);

}  // namespace chassis
