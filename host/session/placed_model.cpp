// Compiles, places and allocates in this order.
#include "host/session/placed_model.hpp"

#include <utility>

#include "host/execute/rehearsal.hpp"
#include "host/parallel/divisions.hpp"

namespace chassis {

void PlacedModel::open_passes(const Settings& settings, RunPlugins& plugins, const RunModel& recorded) {
  if (settings.adapter.plugin.is_set()) adapter = std::make_unique<RunAdapter>(settings.adapter, plugins, recorded);
  if (settings.quant.plugin.is_set()) quant = std::make_unique<RunQuant>(settings.quant, plugins, recorded);
}

void PlacedModel::compile(const Recording& recording, CompileOptions options) {
  const auto axes = layout_axes(*mesh.strategies, mesh.shape, mesh.rank);
  for (const auto& axis : axes) options.passes.layout.push_back(axis.get());
  if (adapter) options.passes.adapters.push_back(&adapter->pass());
  if (quant) options.passes.quant.push_back(&quant->pass());
  compiled = chassis::compile(recording, std::move(options));
}

void PlacedModel::place(const Config& config) {
  const ResolveOptions& options = compiled->options();
  try {
    plan =
        std::make_unique<StackPlan>(mesh.strategies, compiled->program(), parameters(),
                                    stack_context(config, mesh, options.device, options.planned(compiled->program())));
    plan->place(parameters());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig || !error.where().file.empty()) throw;
    throw error_at(config.settings().parallel, error);
  }
}

void PlacedModel::allocate(Communicator& communicator, Collectives* collectives, const Execution& execution,
                           const ParameterTable* lender) {
  release();
  storage.emplace(parameters(), execution.rehearsal.value_or(compiled->options().device), lender);
  make_executor(communicator, collectives, execution);
}

void PlacedModel::make_executor(Communicator& communicator, Collectives* collectives, const Execution& execution) {
  const Device device = execution.rehearsal.value_or(compiled->options().device);
  events = std::make_unique<StackEvents>(*plan, parameters(), communicator, device, execution.keeps_shards);
  ExecutorParts parts;
  if (execution.rehearsal) parts.backend = std::make_shared<const Rehearsal>(device);
  parts.events = execution.events != nullptr ? execution.events : events.get();
  parts.collectives = collectives;
  parts.stages = stages_of(plan->pipeline(), plan->stage_coordinate());
  parts.links = events->links();
  parts.trace = execution.trace;
  parts.keeps_failed = execution.keeps_failed;
  executor = std::make_unique<Executor>(compiled->with_recompute(execution.recompute), std::move(parts));
}

void PlacedModel::release() {
  executor.reset();
  events.reset();
  storage.reset();
}

}  // namespace chassis
