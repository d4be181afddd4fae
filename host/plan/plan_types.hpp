// A plan: the memory of each kind of rank, its timeline and traffic.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/config/config.hpp"
#include "host/execute/executor.hpp"
#include "host/service/comm.hpp"
#include "host/service/memory.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// The categories in a plan. Each combines one or more categories of the allocators.
enum class PlanCategory {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kLogits,
  kGathered,
  kCommunication,
  kOther
};
inline constexpr size_t kNumPlanCategories = 8;
std::string_view plan_category_name(PlanCategory category);  // "gathered"

struct PlanPart {
  uint64_t peak_bytes = 0;           // peak of this category alone
  uint64_t bytes_at_total_peak = 0;  // over all categories, these add up to the total peak

  bool operator==(const PlanPart&) const = default;
};
struct PlanMemory {
  std::array<PlanPart, kNumPlanCategories> categories{};
  uint64_t peak_bytes = 0;

  const PlanPart& of(PlanCategory category) const { return categories[static_cast<size_t>(category)]; }
  bool operator==(const PlanMemory&) const = default;
};
PlanMemory plan_memory(const MemoryUsage& usage);

// Peak memory in one interval of a step.
struct PlanSample {
  std::string event;  // the event that ended the interval: "backward layers.3"
  std::array<uint64_t, kNumPlanCategories> bytes{};

  bool operator==(const PlanSample&) const = default;
};

// The intervals of a step, without those that only repeat others.
struct PlanTimeline {
  struct Repeat {
    size_t begin = 0, end = 0;  // samples that repeat `times` more times, each time with `growth` more bytes
    int64_t times = 0;
    std::array<int64_t, kNumPlanCategories> growth{};
  };
  std::vector<PlanSample> samples;
  std::vector<Repeat> repeats;  // ascending

  std::vector<PlanSample> all() const;
};

struct RankPlan {
  int rank = 0;            // the rank that was rehearsed
  std::vector<int> ranks;  // all ranks that store as much of every tensor, and so need as much memory
  PlanMemory step;         // a step after strategies have learned from the first
  PlanMemory start;        // from the first allocation to the end of the first step
  uint64_t load_peak_bytes = 0;
  uint64_t export_peak_bytes = 0;
  uint64_t host_peak_bytes = 0;    // with a device that has its own memory: offloaded tensors and buckets
  std::vector<CommCount> traffic;  // sent in one step
  PlanTimeline timeline;

  uint64_t peak_bytes() const;
};

// How the units are divided into stages.
struct PlanPipeline {
  std::vector<std::string> stages;     // the units of each: "embed … layers.19"
  std::vector<int> ranks;              // the pipeline's rank that has each stage
  std::vector<double> most_in_flight;  // by rank: micro-batches kept for backward; one of n chunks counts as 1 / n
  double bubble_share = 0.0;           // the share of all ranks' time that they wait, estimated from the units' FLOPs
};

struct Plan {
  std::string name;        // name of the run
  std::string device;      // "cuda"
  std::string mesh;        // "dp_shard=64"
  std::string strategies;  // "fsdp2"; "none"
  std::string compute;     // "bf16"
  int world_size = 1;
  int64_t num_parameters = 0, num_trained = 0;
  int64_t seq_len = 0;
  BatchSizes batch;
  std::optional<PlanPipeline> pipeline;
  Recompute recompute = Recompute::kNone;
  std::vector<std::pair<Recompute, PlanMemory>> modes;  // the largest step with none, selective and full
  uint64_t memory_bytes = 0;                            // memory limit of each device; 0: none given
  bool proven_saving = true;                            // false: too many shards to prove here that they can be saved
  uint64_t header_bytes = 0;                            // largest file header in a save
  std::vector<RankPlan> ranks;                          // one per kind of rank, by first rank

  // For advice: sizes of the mesh, values of options with which the strategies save memory ("parallel.0.stage", "3"),
  // other installed strategies, installed adapters with their default rank ("lora rank=16") if the run has none.
  std::vector<MeshAxis> axes;
  std::vector<std::pair<std::string, std::string>> savings;
  std::vector<std::string> other_strategies;
  // Axes that divide the computation and may be longer, each with an installed strategy that would serve it; "" if a
  // strategy of the run already does.
  std::vector<std::pair<std::string, std::string>> longer_axes;
  size_t num_strategies = 0;       // strategies of the run
  bool chooses_recompute = false;  // recompute.mode = "auto", which uses the memory that is available
  std::vector<std::pair<std::string, std::string>> adapters;  // id, and the text shown to users
  std::vector<std::string> quants;                            // installed, if the run quantizes nothing

  const RankPlan& largest() const;
  bool fits() const { return memory_bytes == 0 || largest().peak_bytes() <= memory_bytes; }
  // True if the run fits, but memory that is not planned, such as the device's own and fragmentation, may not fit.
  bool is_tight() const {
    return memory_bytes > 0 && fits() && !chooses_recompute && largest().peak_bytes() > memory_bytes / 10 * 9;
  }
};

}  // namespace chassis
