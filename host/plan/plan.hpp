// The memory and traffic that every rank of a run will need, computed before it starts. The program, strategies and
// optimizer of the configuration take steps on meta tensors, with communication that moves nothing, and the counters of
// memory and traffic are the plan.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/compile/recompute_mode.hpp"
#include "host/config/config.hpp"
#include "host/plan/plan_types.hpp"
#include "host/service/comm.hpp"
#include "host/service/memory.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

class Session;
struct SessionOptions;
struct Program;

struct PlanRequest {
  // Loads the configuration with these overrides after its own.
  std::function<Config(const std::vector<std::string>& overrides)> config;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  int world_size = 0;  // 0: the product of the sizes in [mesh]; with strategies, some must be set
  uint64_t memory_bytes = 0;
  bool compares_modes = true;  // fills Plan::modes
  bool counts_repeats = true;  // counts a pipeline's repeated micro-batches, with the same plan as rehearsing them
  // Plan::header_bytes, if known from another plan: then saving is not checked again.
  std::optional<uint64_t> header_bytes;
};

// Throws what the run would throw before its first step, such as for a mesh that does not fit or an axis without a
// strategy.
Plan make_plan(const PlanRequest& request);

// The setting in [recompute]; kNone for "auto". Throws a config error if it names more blocks than the longest chain
// has.
Recompute recompute_setting(const Settings& settings, const Program& program);
// For "auto": the cheapest setting that fits, in the order of recompute_of_cost; full if nothing fits. Calls `fits`
// O(log max_blocks) times.
Recompute cheapest_that_fits(int64_t max_blocks, const std::function<bool(const Recompute&)>& fits);

// The plan of one rank on `device`, for a run that plans its own memory.
RankPlan plan_rank(const Config& config, const std::vector<std::string>& plugin_path, int world_size, int rank,
                   Device device, Recompute recompute);

// The options of a session that plans rank `rank` of `world_size`, on a machine that need not have its device.
SessionOptions plan_options(const std::vector<std::string>& plugin_path, int world_size, int rank);
// The axes of size above 1: "dp_replicate=2, dp_shard=8".
std::string divided_axes(const MeshShape& mesh);
// The number of ranks in [mesh]: the product of the sizes that the user set.
int world_size_of(const Settings& settings);

}  // namespace chassis
