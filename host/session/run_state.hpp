// All that computes the steps of a run, as one object: program, executor, strategies, optimizer, groups of ranks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/compile/disk_layout.hpp"
#include "host/execute/axis_collectives.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/comm.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/placed_model.hpp"
#include "host/session/placed_optimizer.hpp"
#include "host/session/providers.hpp"
#include "host/session/ranks.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_objective.hpp"
#include "host/session/step.hpp"
#include "host/session/target.hpp"

namespace chassis {

// The device, its compute dtype, and the size of a micro-batch, for which providers claim ops. Sets the rank's number
// of threads. Throws a config error for a missing device, and for more tokens than one forward pass may have.
ResolveOptions resolve_options(const Settings& settings, const Target& target, const World& world);

// Members refer to those before them. Whoever uses a RunState for several steps keeps a reference to it, and asks it
// for its members in each of them: between two steps, another one may be assigned, with all members at once.
struct RunState {
  RunState() = default;
  RunState(RunState&&) noexcept = default;
  // Frees the present members, the last one first.
  RunState& operator=(RunState&& next) noexcept;

  // Once the strategies have made their plan.
  Ranks ranks() const { return {*model.plan, *communicator, model.events.get()}; }
  ParameterTable& parameters() const { return model.parameters(); }
  Device device() const { return model.compiled->options().device; }
  // Once the optimizer's states are allocated.
  StepParts step_parts() const { return {*model.executor, parameters(), *driver, ranks(), device()}; }

  std::unique_ptr<Communicator> communicator;    // the groups of ranks; the strategies' shards use it
  std::unique_ptr<AxisCollectives> collectives;  // inside blocks
  std::vector<std::unique_ptr<Instance>> providers;
  PlacedModel model;
  std::optional<DiskLayout> disk_mapping;      // how files hold its parameters
  std::unique_ptr<PlacedOptimizer> optimizer;  // NULL unless the configuration was read for training
  std::unique_ptr<OptimizerDriver> driver;     // of `optimizer`; NULL until its states are allocated
};

// Opens the providers and compiles the model for the use of the configuration, once its mesh and the plugins of its
// passes are there; allocates no parameter. Sets `providers`, `model.compiled` and `disk_mapping`. `model` must outlive
// the state. `options` has what the configuration does not say: the objective, further passes, and how nodes are
// resolved.
void compile_program(RunState& state, const Config& config, RunPlugins& plugins, const RunModel& model,
                     const std::vector<std::string>& candidates, CompileOptions options);
// Creates the optimizer that the configuration names, and asks it for its states.
OptimizerSchema make_optimizer(const Settings::Optimizer& settings, RunPlugins& plugins, ParameterTable& parameters);
// Makes the plan of the strategies, and places parameters and optimizer states as it says. `optimizer`
// is set if the configuration was read for training.
void place_shards(RunState& state, const Config& config, std::optional<OptimizerSchema> optimizer);

}  // namespace chassis
