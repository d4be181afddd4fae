// The units and parameters of one rank's pipeline stages, and the arguments of resolve() that describe them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/compile/parameters.hpp"
#include "host/compile/pipeline.hpp"
#include "host/parallel/stack_context.hpp"

namespace chassis {

// The units and parameters of one rank, in the order in which its strategies number them from 0.
struct RankUnits {
  std::vector<chassis_chunk_t> chunks;
  std::vector<size_t> units;  // by unit: its index in the program
  std::vector<std::string> unit_names;
  std::vector<uint32_t> parameters;         // by parameter: its index in the table
  std::vector<std::vector<uint32_t>> read;  // by parameter: the units that read it, ascending
};

// Those of the ranks with this coordinate of the pipeline. Without a pipeline, all units and parameters, also
// parameters that no unit reads.
RankUnits rank_units(const Pipeline& pipeline, int coordinate, const Program& program,
                     const ParameterTable& parameters);

// The coordinate of a rank along the pipeline's axis; 0 without a pipeline.
int stage_coordinate(const Pipeline& pipeline, const MeshShape& mesh, int rank);

// The arguments of resolve(), with all their memory, since instances borrow them until they are destroyed.
class ResolveArguments {
 public:
  // `rank` is a rank of the mesh of `facts` that has these units.
  ResolveArguments(RankUnits here, int num_stages, int rank, const StackContext& facts,
                   const ParameterTable& parameters);
  ResolveArguments(const ResolveArguments&) = delete;
  ResolveArguments& operator=(const ResolveArguments&) = delete;

  const chassis_parallel_problem_t* get() const { return &raw_; }
  const RankUnits& here() const { return here_; }

 private:
  void add_parameter(const Parameter& parameter, const std::vector<uint32_t>& units);

  const RankUnits here_;
  const MeshShape mesh_;
  std::vector<chassis_mesh_axis_t> axes_;
  std::deque<std::string> names_;
  std::deque<std::vector<int64_t>> shapes_;
  std::deque<chassis_parallel_parameter_t> parameters_;
  std::vector<const chassis_parallel_parameter_t*> pointers_;
  std::vector<chassis_str_t> unit_names_;
  chassis_parallel_problem_t raw_{};
};

}  // namespace chassis
