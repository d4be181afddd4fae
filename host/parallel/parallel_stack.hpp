// The stack of parallel strategies ([[parallel]]): asks each what it divides and where shards live, checks that
// together they place every parameter and serve every axis, and forwards the executor's events, in list order before a
// unit, reversed after it. Without members it is one rank that holds every parameter whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/base/error.hpp"
#include "host/compile/layout.hpp"
#include "host/compile/pipeline.hpp"
#include "host/execute/executor.hpp"
#include "host/execute/stage_links.hpp"
#include "host/parallel/shards.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

struct StackContext {
  MeshShape mesh;
  int rank = 0;
  Dtype reduce_dtype = Dtype::f32;
  Device device;
  bool trains = true;
  int64_t num_microbatches = 1;
  int64_t time = 1;  // tokens in a row
};

// One table of [[parallel]].
struct StackMember {
  std::unique_ptr<Instance> instance;
  SourcePosition where;
};

class ParallelStack final : public UnitEvents {
 public:
  explicit ParallelStack(std::vector<StackMember> members);
  ~ParallelStack() override;

  bool empty() const { return members_.empty(); }
  // The axis that gets the ranks that [mesh] leaves over: the first home axis, in list order, without a given size.
  std::string home_axis(const std::vector<std::string>& given) const;

  // The home axis of each strategy, in list order.
  std::vector<std::string> home_axes() const;

  // [control] The axes of this mesh that may divide the computation, for the layout pass, which asks the strategies
  // through them. They live as long as the stack.
  std::vector<const LayoutStrategy*> layout_axes(const MeshShape& mesh, int rank);

  // [control] Sets the mesh of the parameters and the placements in their descriptors. If granularity forbids the cut
  // that a strategy chose, the parameter is cut between blocks, or has one owner. Throws a config error, where possible
  // with the position of the table to change, if an axis has no strategy or two, a strategy has no axis, or two
  // strategies place one parameter; a plugin error if no strategy places one. May be called again before bind.
  void resolve(const Program& program, ParameterTable& parameters, const StackContext& facts);
  // [control] For plans: moves to another rank of the mesh after resolve(), with new instances of the strategies.
  // Descriptors stay, because they are the same on all ranks. Everything that bind() made is dropped.
  void move_to(int rank, const Program& program, std::vector<StackMember> members);
  // An option that may save memory, as a strategy declares it: the strategy's index in the stack, the option's name,
  // and its value in JSON.
  struct Saving {
    size_t member;
    std::string option, json;
  };
  std::vector<Saving> savings() const;
  // The number of ranks along the data axes, which divide the batch, and the index of this rank among them.
  int num_data_ranks() const { return num_data_ranks_; }
  int data_rank() const { return data_rank_; }
  // True if this rank counts the losses and tokens of the rows that it computes together with other ranks.
  bool counts_rows() const { return counts_rows_; }
  // True if any strategy divides the batch, even if its axes have one rank.
  bool divides_batch() const { return !data_axes_.empty(); }
  // The division of units into stages, and the coordinate of this rank along the pipeline's axis.
  const Pipeline& pipeline() const { return pipeline_; }
  int stage_coordinate() const { return stage_coordinate_; }
  // NULL before bind, and if nothing divides the units.
  StageLinks* links() { return links_.get(); }

  // [control] Call after the parameters are allocated.
  void bind(Communicator& communicator, Device device);
  Shards& shards() { return *shards_; }

  // [step][all-ranks]
  void pre_forward(size_t unit, Flags flags) override;
  void post_forward(size_t unit, Flags flags) override;
  void pre_backward(size_t unit, Flags flags) override;
  void post_backward(size_t unit, Flags flags) override;
  void finish_grads();
  // Updates resident tensors from their shards, after a load, an initialization or an optimizer step. Throws a plugin
  // error that names a parameter that its strategy did not update.
  void refresh();
  // The axes along which a strategy currently lets replicas of parameters differ, in the order of the mesh. Call after
  // finish_step().
  std::vector<std::string> axes_of_differing_replicas() const;
  // Ends a step or an evaluation: afterwards nothing is in flight, and only resident parameters are whole. Throws a
  // plugin error that names a parameter that its strategy did not release.
  void finish_step();

 private:
  struct Member {
    std::unique_ptr<Instance> instance;
    SourcePosition where;
    const chassis_parallel_t* table = nullptr;
    std::vector<std::string> axes = {};  // axes that it serves
  };
  class LayoutAxisOf;
  class DivisionSink;
  struct Problem;  // the arguments of resolve(), with their memory
  // The answer of a strategy; its placements are in rules_.
  struct Answer {
    std::vector<std::string> axes;     // axes that it serves
    std::vector<uint32_t> parameters;  // parameters that it places, by index in the table
  };
  class Sink;
  struct UnitHook {
    const char* name;  // for messages
    chassis_status_t* (*chassis_parallel_t::*function)(chassis_instance*, uint32_t, uint32_t);
  };
  struct StepHook {
    const char* name;
    chassis_status_t* (*chassis_parallel_t::*function)(chassis_instance*);
  };

  // By axis.
  static std::map<std::string, Division> ask_divisions(const Member& member, const MeshShape& mesh, int rank,
                                                       const Program& program);
  Division division_of(const std::string& axis, const MeshShape& mesh, int rank, const Program& program) const;
  PipelineFacts pipeline_facts(const Program& program) const;
  Pipeline ask_stages(const Program& program, std::vector<Answer>& answers) const;
  void find_stages_of(const Program& program);
  int coordinate_of(int rank) const;
  std::unique_ptr<Problem> problem_of(int coordinate) const;
  void resolve_stages(const Program& program, int coordinate, std::vector<Answer>& answers);
  void repeat_questions(const Program& program);
  void number_here();
  void place_rank();
  void take_problem(std::unique_ptr<Problem> problem);
  void connect();
  void sum_partial_gradients();
  void call(const Member& member, const UnitHook& hook, size_t unit, uint32_t which, Flags flags);
  void call(const Member& member, const StepHook& hook);
  std::vector<std::pair<uint32_t, Flags>> ready_after(uint32_t unit, Flags flags);
  uint32_t local_unit(size_t unit) const;
  void expect_gathered(size_t unit, const char* when) const;
  Parameter& local(uint32_t i) const;
  void trace(const char* what, uint32_t unit) const;
  void check_axes(const std::vector<Answer>& answers) const;
  void check_parameters();
  std::vector<std::string> divide_over_context(const ParameterTable& parameters);
  void respect_granularity(const ParameterTable& parameters);
  int num_ways(const ShardRule& rule) const;
  void place_stages(ParameterTable& parameters);
  void place(ParameterTable& parameters);

  // Counts that show when the gradient of a parameter is complete.
  struct Readiness {
    uint32_t num_units = 0;            // units that read it
    uint32_t num_last = 0;             // those of them whose last micro-batch of the step is done
    std::map<int, uint32_t> num_done;  // by micro-batch: units that are done with it
  };
  // Parameters that have copies on several stages.
  struct Copies {
    CommGroup* group;
    std::vector<Parameter*> parameters;
  };

  std::vector<Member> members_;
  StackContext facts_;
  ParameterTable* parameters_ = nullptr;
  Pipeline pipeline_;
  std::vector<std::string> unit_names_;
  std::vector<double> unit_costs_;
  std::map<const Parameter*, uint32_t> index_;  // index in the table
  int stage_coordinate_ = 0;

  // For all stages, by parameter of the table.
  std::vector<ShardRule> rules_;
  std::vector<const Member*> placed_by_;          // NULL: none; always whole on ranks that read it
  std::vector<std::vector<int>> coordinates_of_;  // the pipeline's coordinates that read it; empty without one
  std::vector<uint32_t> placed_;                  // parameters that a member places
  std::optional<Error> conflict_;                 // the first conflict, thrown once all axes are known to be served

  // For this rank's stages, with units and parameters as strategies number them.
  std::unique_ptr<Problem> problem_;
  std::map<size_t, uint32_t> local_unit_;  // by unit of the program
  std::vector<uint32_t> placed_here_, unplaced_here_;
  std::vector<std::vector<uint32_t>> trained_of_unit_;
  std::vector<Readiness> ready_;  // by parameter
  std::vector<Copies> copies_;
  std::unique_ptr<RankLinks> links_;

  std::vector<std::string> data_axes_;  // data axes that a member serves
  int num_data_ranks_ = 1, data_rank_ = 0;
  bool counts_rows_ = true;
  std::vector<std::unique_ptr<LayoutStrategy>> layout_axes_;
  Communicator* communicator_ = nullptr;
  std::unique_ptr<Shards> shards_;
};

}  // namespace chassis
