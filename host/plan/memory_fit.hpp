// Whether a run fits the memory that is there, from a plan of this very rank, before anything is allocated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/launch/world.hpp"
#include "host/plan/plan.hpp"

namespace chassis {

class Session;

struct MemoryFit {
  Recompute recompute = Recompute::kNone;
  std::optional<RankPlan> plan;  // of this rank; none if the run could not be planned
};

// What a rank needs, and what its device and its machine have.
struct RankMemory {
  std::string machine;     // ranks of one machine share its memory
  bool on_device = false;  // beside the host's
  bool planned = true;     // else `device_bytes` are activations alone
  uint64_t device_bytes = 0, host_bytes = 0;
  uint64_t device_free = 0, device_total = 0, host_free = 0, host_total = 0;
};

struct MemoryShortage {
  int rank = -1;  // the first that lacks something; -1: all fit
  uint64_t needed_bytes = 0, there_bytes = 0;
  std::string what;  // "3 ranks on 10.0.0.1"
};
// Beyond what is free now, or beyond what there is at all. By rank; the same on every rank.
MemoryShortage find_shortage(const std::vector<RankMemory>& ranks, bool of_free);

// [all-ranks] Chooses for recompute.mode = "auto": the cheapest with which no rank's plan exceeds what is free for it.
// Throws out of memory where what is there at all does not suffice, unless run.memory_check = "warn". `config` is what
// the session was made from.
MemoryFit fit_memory(Session& session, const Config& config, const std::vector<std::string>& plugin_path, World& world);

}  // namespace chassis
