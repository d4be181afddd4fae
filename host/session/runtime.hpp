// What computes: providers, the compiled program, its executor and the optimizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/program/compile.hpp"
#include "host/program/executor.hpp"
#include "host/session/optimizer_driver.hpp"
#include "host/session/providers.hpp"
#include "host/session/run_mesh.hpp"
#include "host/session/run_model.hpp"

namespace chassis {

// For what claims are made: the device, its dtype, and the rows of a micro-batch. Sets the rank's number of threads.
// Throws a config error for a device that is not there, and for more tokens than one forward pass may have.
ResolveOptions resolve_options(const Settings& settings, const Target& target, const World& world);

struct Runtime {
  RunProviders providers;
  std::unique_ptr<CompiledProgram> compiled;
  std::optional<DiskMapping> disk_mapping;  // how files hold its parameters
  std::unique_ptr<Executor> executor;
  std::unique_ptr<OptimizerDriver> optimizer;  // of a configuration that is read for training
};

// Compiles what the model records, and proves what the use of the configuration needs; allocates no parameter. The
// model outlives it.
Runtime make_runtime(const Config& config, RunPlugins& plugins, const RunModel& model,
                     const std::vector<std::string>& candidates, ResolveOptions options, const ProgramPasses& passes);
// The optimizer that the configuration names.
std::unique_ptr<OptimizerDriver> make_optimizer(const Settings::Optimizer& settings, RunPlugins& plugins,
                                                ParameterTable& parameters);
// Parameters and optimizer states get the places that the strategies give them, and the executor calls the strategies.
void place_shards(const Config& config, const RunMesh& mesh, Runtime& runtime);

// Floating point operations of forward and backward for one token of rows of `time`, products alone.
double flops_per_token(const Program& program, int64_t time);

}  // namespace chassis
