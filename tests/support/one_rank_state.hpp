// The state of a run of one rank, made without a session.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "host/launch/world.hpp"
#include "host/session/run_state.hpp"
#include "tests/support/cpu_run.hpp"

namespace chassis::test {

// Takes the program of `run`, whose parameters are allocated. `world` outlives the state.
inline RunState one_rank_state(CpuRun run, std::unique_ptr<Instance> optimizer, World& world) {
  RunState state;
  state.communicator = std::make_unique<Communicator>(nullptr, world, MeshShape(), 0, Device{});
  state.model.mesh.strategies = std::make_shared<Strategies>(std::vector<StackMember>{});
  run.executor.reset();
  state.model.compiled = run.compiled;
  OptimizerSchema schema(std::move(optimizer), state.parameters(), 0.0);
  state.model.plan = std::make_unique<StackPlan>(state.model.mesh.strategies, state.model.compiled->program(),
                                                 state.parameters(), StackContext{});
  state.optimizer = std::make_unique<PlacedOptimizer>(std::move(schema));
  state.model.storage = std::move(run.storage);
  state.model.events =
      std::make_unique<StackEvents>(*state.model.plan, state.parameters(), *state.communicator, Device{});
  state.model.executor =
      std::make_unique<Executor>(*state.model.compiled, ExecutorParts{.events = state.model.events.get()});
  state.driver = std::make_unique<OptimizerDriver>(*state.optimizer, Device{}, *state.communicator);
  return state;
}

}  // namespace chassis::test
