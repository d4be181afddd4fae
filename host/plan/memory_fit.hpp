// Decides whether a run fits into memory, from the plans of its ranks, before anything is allocated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/launch/world.hpp"
#include "host/plan/plan.hpp"
#include "host/service/host_memory.hpp"

namespace chassis {

class CompiledProgram;
class Session;

struct MemoryFit {
  Recompute recompute = Recompute::kNone;
  std::optional<RankPlan> plan;  // this rank's plan; empty if the run could not be planned
};

// The memory that a rank needs, and that its device and its machine have.
struct RankMemory {
  std::string machine;     // ranks of one machine share its memory
  bool on_device = false;  // `device_bytes` are on a device, else on the host
  bool planned = true;     // false: `device_bytes` counts only activations
  uint64_t device_bytes = 0, host_bytes = 0;
  uint64_t device_free = 0, device_total = 0, host_free = 0, host_total = 0;
  uint64_t swap_free = 0;
  std::string limited_by = {};  // the limit that sets host_free; empty: the machine's memory
};

struct MemoryShortage {
  int rank = -1;  // the first rank that lacks memory; -1: all fit
  uint64_t needed_bytes = 0, available_bytes = 0;
  std::string what;  // "3 ranks on 10.0.0.1"
  uint64_t swap_bytes = 0;  // free swap space there
  std::string limited_by = {};
};
// Returns "" or " (memory.max of control group /pod)", followed by the swap space if there is any.
std::string text_of_limits(const MemoryShortage& shortage);
// Returns a warning if a process that needs `planned_bytes` more exceeds one of its own limits, else "".
std::string limit_warning(const std::vector<ProcessLimit>& limits, uint64_t planned_bytes);
// Compares with the memory that is free now if `of_free`, else with all memory. `ranks` is indexed by rank, so that
// every rank gets the same result.
MemoryShortage find_shortage(const std::vector<RankMemory>& ranks, bool of_free);

// [all-ranks] For recompute.mode = "auto", chooses the cheapest setting with which the plan of every rank fits into its
// free memory. Throws an out-of-memory error if even all memory is not enough, unless run.memory_check = "warn".
// `config` is the session's configuration.
// The same for the next state of a run that already holds `held_bytes` on this rank, `peak_bytes` of them during the
// change; these are memory that the next state may use.
struct MemoryHeld {
  uint64_t held_bytes = 0;
  uint64_t peak_bytes = 0;  // that the change itself needs; may be more than the plan of the steps
};
MemoryFit fit_memory(const CompiledProgram& compiled, const Config& config, const std::vector<std::string>& plugin_path,
                     World& world, const MemoryHeld& held);
MemoryFit fit_memory(Session& session, const Config& config, const std::vector<std::string>& plugin_path, World& world);

}  // namespace chassis
