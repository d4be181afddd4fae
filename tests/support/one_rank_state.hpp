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
  state.mesh.strategies = std::make_shared<Strategies>(std::vector<StackMember>{});
  run.executor.reset();
  state.compiled = run.compiled;
  OptimizerSchema schema(std::move(optimizer), state.parameters(), 0.0);
  state.plan =
      std::make_unique<StackPlan>(state.mesh.strategies, state.compiled->program(), state.parameters(), StackContext{});
  state.optimizer = std::make_unique<PlacedOptimizer>(std::move(schema));
  state.storage = std::move(run.storage);
  state.events = std::make_unique<StackEvents>(*state.plan, state.parameters(), *state.communicator, Device{});
  state.executor = std::make_unique<Executor>(*state.compiled, ExecutorParts{.events = state.events.get()});
  state.driver = std::make_unique<OptimizerDriver>(*state.optimizer, Device{}, *state.communicator);
  return state;
}

}  // namespace chassis::test
