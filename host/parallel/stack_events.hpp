// The work of the strategies of [[parallel]] in a step: forwards the executor's events to them, in list order before a
// unit, reversed after it, and sums gradients of which several ranks have a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/compile/parameters.hpp"
#include "host/execute/executor.hpp"
#include "host/execute/stage_links.hpp"
#include "host/parallel/shards.hpp"
#include "host/parallel/stack_plan.hpp"
#include "host/service/comm.hpp"

namespace chassis {

class StackEvents final : public UnitEvents {
 public:
  // [control][all-ranks] Call before the first step or between two steps, when the parameters are placed by the plan
  // and allocated on the device. Creates the buffers of the strategies, and binds their instances. Unless it `keeps`
  // them, the contents of shards are undefined afterwards, as after the allocation: fill them. Call refresh() before a
  // unit runs. The arguments must outlive it.
  StackEvents(const StackPlan& plan, ParameterTable& parameters, Communicator& communicator, Device device,
              bool keeps = false);
  ~StackEvents() override;

  Shards& shards() { return *shards_; }
  // NULL if nothing divides the units.
  StageLinks* links() { return links_.get(); }

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
  struct UnitHook {
    const char* name;  // for messages
    chassis_status_t* (*chassis_parallel_t::*function)(chassis_instance*, uint32_t, uint32_t);
  };
  struct StepHook {
    const char* name;
    chassis_status_t* (*chassis_parallel_t::*function)(chassis_instance*);
  };
  // Counts that show when the gradient of a parameter is complete.
  struct Readiness {
    uint32_t num_units = 0;            // units that read it
    uint32_t num_last = 0;             // those of them whose last micro-batch of the step is done
    std::map<int, uint32_t> num_done;  // by micro-batch: units that are done with it
  };
  // Parameters that have copies on several stages.
  struct Copies {
    ProcessGroup* group;
    std::vector<Parameter*> parameters;
  };

  void count_readers();
  void connect();
  void sum_partial_gradients();
  static void call(const StackStrategy& strategy, const UnitHook& hook, size_t unit, uint32_t which, Flags flags);
  static void call(const StackStrategy& strategy, const StepHook& hook);
  std::vector<std::pair<uint32_t, Flags>> ready_after(uint32_t unit, Flags flags);
  uint32_t local_unit(size_t unit) const;
  void expect_gathered(size_t unit, const char* when) const;
  void trace(const char* what, uint32_t unit) const;
  const Strategies& strategies() const { return plan_.strategies(); }
  const StackStrategy& placed_by(uint32_t i) const;

  const StackPlan& plan_;
  ParameterTable& parameters_;
  Communicator& communicator_;
  // Units and parameters of this rank, as strategies number them.
  std::vector<Parameter*> here_;
  std::map<size_t, uint32_t> local_unit_;  // by unit of the program
  std::vector<uint32_t> placed_here_, unplaced_here_;
  std::vector<std::vector<uint32_t>> trained_of_unit_;
  std::vector<Readiness> ready_;  // by parameter
  std::vector<Copies> copies_;
  std::unique_ptr<RankLinks> links_;
  std::unique_ptr<Shards> shards_;
};

}  // namespace chassis
