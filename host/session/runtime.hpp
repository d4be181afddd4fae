// The providers, the compiled program, its division over the ranks, its executor and the optimizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/compile/compile.hpp"
#include "host/execute/executor.hpp"
#include "host/parallel/stack_events.hpp"
#include "host/parallel/stack_plan.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/providers.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_quant.hpp"

namespace chassis {

// The device, its compute dtype, and the size of a micro-batch, for which providers claim ops. Sets the rank's number
// of threads. Throws a config error for a missing device, and for more tokens than one forward pass may have.
ResolveOptions resolve_options(const Settings& settings, const Target& target, const World& world);

struct Runtime {
  std::vector<std::unique_ptr<Instance>> providers;
  std::optional<CompiledProgram> compiled;
  std::optional<DiskMapping> disk_mapping;  // how files hold its parameters
  std::optional<ParameterStorage> storage;  // from the allocation on
  std::unique_ptr<const StackPlan> plan;    // from place_shards() on
  std::unique_ptr<StackEvents> events;      // NULL before the parameters are allocated
  std::unique_ptr<Executor> executor;       // likewise
  std::unique_ptr<OptimizerDriver> optimizer;  // NULL unless the configuration was read for training
};

// Opens the providers and compiles the model for the use of the configuration; allocates no parameter, and leaves
// `executor` and `optimizer` NULL. The model must outlive it, and so must `quant`, which may be NULL.
Runtime make_runtime(const Config& config, RunPlugins& plugins, const RunModel& model,
                     const std::vector<std::string>& candidates, ResolveOptions options, const ProgramPasses& passes,
                     const RunQuant* quant);
// Creates the optimizer that the configuration names.
std::unique_ptr<OptimizerDriver> make_optimizer(const Settings::Optimizer& settings, RunPlugins& plugins,
                                                ParameterTable& parameters);
// Makes the plan of the strategies, and places parameters and optimizer states as it says.
void place_shards(const Config& config, const RunMesh& mesh, Runtime& runtime);

}  // namespace chassis
