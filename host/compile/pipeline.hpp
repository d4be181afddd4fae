// How a run is divided into pipeline stages: which units each has, where they lie, and in which order each rank runs
// them. Without a strategy that divides units, it is one stage with all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/base/error.hpp"
#include "host/graph/program.hpp"
#include "host/state/mesh_shape.hpp"
#include "host/state/schedule.hpp"
#include "host/state/stage_division.hpp"

namespace chassis {

struct Pipeline {
  std::string axis;              // axis of the mesh, "pp"; empty: nothing divides the units
  std::vector<UnitRange> units;  // by stage
  // The ranks of the schedule are coordinates of the axis. Has no entries if nothing divides the units, or if the run
  // does not train.
  Schedule schedule;

  bool divides() const { return !axis.empty(); }
  const StageMap& stages() const { return schedule.stages; }
  int num_stages() const { return schedule.stages.num_stages(); }
  // A coordinate's work in a step. `num_microbatches` must be that of the schedule if the pipeline divides.
  std::vector<Work> work(int coordinate, int64_t num_microbatches) const;
  int stage_of(size_t unit) const;
  // The whole pipeline, with a line for each rank and stage, to compare ranks.
  std::string text() const;
  // The list of each rank and the ranks of the stages, without the stages' units.
  std::string schedule_text() const;
};

// The units that strategies may divide, and the mesh that divides them.
struct PipelineFacts {
  const Program& program;
  std::vector<double> unit_costs;
  const MeshShape& mesh;
  int rank = 0;
  int64_t num_microbatches = 0;  // 0: nothing is trained
};

// The host's side of stages(): collects the answer of one strategy.
class StageCollector {
 public:
  explicit StageCollector(const PipelineFacts& facts);
  const chassis_stage_sink_t* get() const { return &raw_; }
  // True if the strategy divides anything.
  bool is_used() const { return !axis_.empty() || !layers_.empty(); }
  // Proves the schedule. Throws a config error that names rank and entry, or numbers that do not fit.
  Pipeline pipeline() const;

 private:
  static StageCollector& self(const chassis_stage_sink_t* s) { return *static_cast<StageCollector*>(s->impl); }
  void take(const std::string& axis, Schedule schedule);
  int num_ranks(const std::string& axis) const;
  Schedule named(const std::string& axis, const std::string& name, uint32_t num_chunks, uint32_t group_size) const;
  Schedule parsed(const std::string& axis, std::string_view text, const std::string& origin) const;
  Schedule listed(const std::string& axis, const uint32_t* ranks, uint32_t num_stages,
                  const chassis_work_t* const* works, const uint32_t* num_works) const;
  void expect_microbatches(const Schedule& schedule, const std::string& what) const;

  const PipelineFacts& facts_;
  std::string axis_;
  Schedule schedule_;
  std::vector<int64_t> layers_;
  chassis_stage_sink_t raw_{};
};

// The arguments of stages(), with their memory.
class StagesArguments {
 public:
  explicit StagesArguments(const PipelineFacts& facts);
  StagesArguments(const StagesArguments&) = delete;
  StagesArguments& operator=(const StagesArguments&) = delete;
  const chassis_stage_problem_t* get() const { return &raw_; }

 private:
  std::vector<chassis_mesh_axis_t> axes_;
  std::vector<std::string> unit_texts_;
  std::vector<chassis_str_t> unit_names_;
  chassis_stage_problem_t raw_{};
};

// The units of the longest chain; if there are several, of the first.
UnitRange layer_units(const Program& program);

// The axes of the mesh as plugins get them; the names are those in `mesh`.
std::vector<chassis_mesh_axis_t> raw_axes(const MeshShape& mesh, int rank);

}  // namespace chassis
