// The stack of parallel strategies ([[parallel]]): asks each where shards live, proves that together they place every
// parameter and serve every axis, and passes the executor's events on: in list order before a unit, reversed after it.
// Without members it is one rank that has every parameter whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/base/error.hpp"
#include "host/plugin/instance.hpp"
#include "host/program/executor.hpp"
#include "host/program/shards.hpp"

namespace chassis {

struct StackFacts {
  MeshShape mesh;
  int rank = 0;
  Dtype reduce_dtype = Dtype::f32;
  Device device;
  int64_t num_microbatches = 1;
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
  // The axis that takes the ranks that nobody asked for.
  std::string home_axis() const;

  // [control] Sets placements of the parameters' descriptors and their mesh; where granularity does not let a parameter
  // be cut as a strategy says, it is cut between blocks, or has one owner. Throws a config error in words, with the
  // place of the table to change, where an axis has no strategy or two, a strategy no axis, a parameter no place or
  // two. May be called again, before bind.
  void resolve(const Program& program, ParameterTable& parameters, const StackFacts& facts);
  // What may save memory, as strategies say: of the strategy at that place in the stack, an option and its value in
  // JSON.
  struct Saving {
    size_t member;
    std::string option, json;
  };
  std::vector<Saving> savings() const;
  // Of the ranks along the data axes, which divide the batch: how many, and which this one is.
  int num_data_ranks() const { return num_data_ranks_; }
  int data_rank() const { return data_rank_; }

  // [control] After the parameters are allocated.
  void bind(Communicator& communicator, Device device);
  Shards& shards() { return *shards_; }

  // [step][all-ranks]
  void pre_forward(size_t unit, Flags flags) override;
  void post_forward(size_t unit, Flags flags) override;
  void pre_backward(size_t unit, Flags flags) override;
  void post_backward(size_t unit, Flags flags) override;
  void finish_grads();
  // Resident tensors show their shards again: after a load, an initialization, an optimizer step. Throws a plugin error
  // that names a parameter which a strategy has forgotten.
  void refresh();
  // At the end of a step and of an evaluation: nothing is in flight, and nothing gathered that is not resident. Throws
  // a plugin error that names a parameter which a strategy holds on to.
  void drain();

 private:
  struct Member {
    std::unique_ptr<Instance> instance;
    SourcePosition where;
    const chassis_parallel_t* table = nullptr;
  };
  struct Problem;  // what resolve() shows, with its memory
  // What a strategy says to it; where its parameters lie is in rules_.
  struct Answer {
    std::vector<std::string> axes;     // that it serves
    std::vector<uint32_t> parameters;  // that it places
  };
  class Sink;
  using UnitHook = chassis_status_t* (*chassis_parallel_t::*)(chassis_instance*, uint32_t, uint32_t);
  using Hook = chassis_status_t* (*chassis_parallel_t::*)(chassis_instance*);

  void call(const Member& member, UnitHook hook, uint32_t which, Flags flags);
  void call(const Member& member, Hook hook);
  void trace(const char* what, size_t unit) const;
  void check_axes(const std::vector<Answer>& answers) const;
  void check_parameters(const std::vector<Answer>& answers);
  void respect_granularity(const ParameterTable& parameters);
  int num_ways(const ShardRule& rule) const;
  void place(ParameterTable& parameters);

  std::vector<Member> members_;
  std::unique_ptr<Problem> problem_;
  StackFacts facts_;
  ParameterTable* parameters_ = nullptr;
  std::vector<ShardRule> rules_;
  std::vector<uint32_t> placed_, unplaced_;  // by members; by none: resident, and their gradients are the step's
  std::vector<std::string> served_axes_;
  int num_data_ranks_ = 1, data_rank_ = 0;
  std::vector<std::vector<uint32_t>> ready_at_;  // by unit: parameters whose gradients are complete after its backward
  Communicator* communicator_ = nullptr;
  std::unique_ptr<Shards> shards_;
};

}  // namespace chassis
