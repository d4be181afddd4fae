// How the stack of parallel strategies ([[parallel]]) divides a run: pipeline stages, their proven schedule, and where
// every parameter lives. It never changes once it is made, and other plans can be made from the same program and
// parameters. Without strategies it is one rank that holds every parameter whole. StackEvents acts on it in a step.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/compile/pipeline.hpp"
#include "host/graph/program.hpp"
#include "host/parallel/resolve_arguments.hpp"
#include "host/parallel/shard_rule.hpp"
#include "host/parallel/stack_answers.hpp"
#include "host/parallel/stack_context.hpp"
#include "host/parallel/strategies.hpp"

namespace chassis {

class StackPlan {
 public:
  // [control] Asks new instances of the strategies, and checks that together they place every parameter and serve every
  // axis; see ask_strategies() for the errors. If granularity forbids the cut that a strategy chose, the parameter is
  // cut between blocks, or has one owner. Changes no parameter.
  StackPlan(const std::shared_ptr<Strategies>& strategies, const Program& program, const ParameterTable& parameters,
            StackContext facts);
  // [control] For plans: the same plan for another rank of the mesh, with new instances of the same strategies.
  StackPlan at_rank(int rank, const std::shared_ptr<Strategies>& strategies, const Program& program,
                    const ParameterTable& parameters) const;

  // [control] Sets the mesh and the rank of the parameters and the placements in their descriptors, which load, save,
  // norms and the optimizer follow. Replaces those of another plan. Call while nothing is allocated. Without strategies
  // the program's own layout stays.
  void place(ParameterTable& parameters) const;

  const Strategies& strategies() const { return *strategies_; }
  const MeshShape& mesh() const { return facts_.mesh; }
  int rank() const { return facts_.rank; }
  bool serves(size_t strategy, const std::string& axis) const;
  // The number of ranks along the data axes, which divide the batch, and the index of this rank among them.
  int num_data_ranks() const { return num_data_ranks_; }
  int data_rank() const { return data_rank_; }
  // True if this rank counts the losses and tokens of the rows that it computes together with other ranks.
  bool counts_rows() const { return counts_rows_; }
  // True if any strategy divides the batch, even if its axes have one rank.
  bool divides_batch() const { return !answers_.data_axes.empty(); }
  // The division of units into stages, and the coordinate of this rank along the pipeline's axis.
  const Pipeline& pipeline() const { return answers_.pipeline; }
  int stage_coordinate() const { return stage_coordinate_; }
  // By parameter of the table.
  const std::vector<ParameterPlacement>& placements() const { return answers_.placements; }
  // The units and parameters of this rank's stages.
  const RankUnits& here() const { return answers_.here; }

 private:
  int num_ways(const ShardRule& rule) const;
  void divide_over_context(const ParameterTable& parameters);
  void respect_granularity(const ParameterTable& parameters);
  void find_replicas(const ParameterTable& parameters);
  void place_rank();
  bool is_on(const ParameterPlacement& placement) const;
  std::vector<Placement> placements_of(const ParameterPlacement& placement) const;

  std::shared_ptr<const Strategies> strategies_;
  StackContext facts_;
  StackAnswers answers_;
  bool places_any_ = false;              // whether a strategy places parameters
  std::vector<std::string> shard_axes_;  // axes that divide parameters or hold replicas, if a strategy places any
  // For this rank:
  int stage_coordinate_ = 0;
  int num_data_ranks_ = 1, data_rank_ = 0;
  bool counts_rows_ = true;
};

}  // namespace chassis
