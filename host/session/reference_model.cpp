// The copy is compiled from the same recording, with all parameters frozen, and placed by strategies of its own.
#include "host/session/reference_model.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/execute/rehearsal.hpp"
#include "host/graph/op_table.hpp"
#include "host/parallel/divisions.hpp"

namespace chassis {
namespace {

// True if the model before training is the present one without its adapter.
bool is_without_adapter(const Session& session) {
  if (session.adapter() == nullptr || session.settings().adapter.path.is_set() ||
      session.settings().reference.path.is_set())
    return false;
  return std::ranges::all_of(session.parameters().all(), [](const auto& p) { return !p->trainable || p->added; });
}

void refuse_dropout(const Session& session) {
  for (const BlockType& block : session.program().blocks)
    for (const Op& op : block.ops)
      if (op.spec().is_random)
        throw config_error(session.settings().reference,
                           "op '" + op.name + "' of block '" + block.name +
                               "' drops elements at random, so the model at the first step would not be its reference")
            .hint("set its probability (adapter.dropout) to 0");
}

}  // namespace

Purpose reference_purpose(const Session& session) {
  refuse_dropout(session);
  return is_without_adapter(session) ? Purpose::kReference : Purpose::kLoss;
}

// Members refer to those before them.
struct ReferenceModel::Copy {
  std::optional<RunAdapter> adapter;
  std::optional<RunQuant> quant;
  RunMesh mesh;
  std::optional<CompiledProgram> compiled;
  std::optional<ParameterStorage> storage;
  std::unique_ptr<const StackPlan> plan;
  std::unique_ptr<StackEvents> events;
  std::unique_ptr<Executor> executor;
};

ReferenceModel::ReferenceModel(Session& session) : session_(session) {
  if (reference_purpose(session) == Purpose::kReference) {
    session.compiled().resolved(Purpose::kReference);
    return;
  }
  copy_ = std::make_unique<Copy>();
  const Settings& settings = session.settings();
  RunPlugins& plugins = session.plugins();
  copy_->mesh = session.state().mesh;
  copy_->mesh.strategies = std::make_shared<Strategies>(stack_members(settings, plugins));
  ProgramPasses passes;
  const auto axes = layout_axes(*copy_->mesh.strategies, copy_->mesh.shape, copy_->mesh.rank);
  for (const auto& axis : axes) passes.layout.push_back(axis.get());
  if (session.adapter() != nullptr)
    passes.adapters.push_back(&copy_->adapter.emplace(settings.adapter, plugins, session.model()).pass());
  if (session.quant() != nullptr)
    passes.quant.push_back(&copy_->quant.emplace(settings.quant, plugins, session.model()).pass());
  copy_->compiled = compile(session.model().recording(settings.model, session.config().use()),
                            {.objective = session.objective()->request(),
                             .passes = passes,
                             .freeze =
                                 [](ParameterTable& parameters) {
                                   for (const auto& p : parameters.all()) p->trainable = false;
                                 },
                             .resolve = session.compiled().options(),
                             .purposes = {Purpose::kLoss}});
  const CompiledProgram& compiled = *copy_->compiled;
  copy_->plan = std::make_unique<StackPlan>(
      copy_->mesh.strategies, compiled.program(), compiled.parameters(),
      stack_context(session.config(), copy_->mesh, session.device(), compiled.options().planned(compiled.program())));
  copy_->plan->place(compiled.parameters());
}

ReferenceModel::~ReferenceModel() = default;

void ReferenceModel::allocate(std::optional<Device> rehearsal) {
  if (!copy_) return;
  const Device device = rehearsal.value_or(session_.device());
  ParameterTable& parameters = copy_->compiled->parameters();
  copy_->executor.reset();
  copy_->events.reset();
  copy_->storage.reset();
  copy_->storage.emplace(parameters, device, &session_.parameters());
  RunState& state = session_.state();
  copy_->events = std::make_unique<StackEvents>(*copy_->plan, parameters, *state.communicator, device);
  ExecutorParts parts;
  if (rehearsal) parts.backend = std::make_shared<const Rehearsal>(device);
  parts.events = copy_->events.get();
  parts.collectives = state.collectives.get();
  parts.stages = stages_of(copy_->plan->pipeline(), copy_->plan->stage_coordinate());
  parts.links = copy_->events->links();
  copy_->executor = std::make_unique<Executor>(*copy_->compiled, std::move(parts));
}

void ReferenceModel::take() {
  if (!copy_) return;
  copy_->compiled->parameters().copy_from(session_.parameters());
  copy_->events->refresh();
}

StreamValues ReferenceModel::outputs(const Fields& fields) {
  return copy_ ? copy_->executor->outputs(Purpose::kLoss, fields)
               : session_.executor().outputs(Purpose::kReference, fields);
}

void ReferenceModel::finish_step() { (copy_ ? *copy_->events : session_.ranks().events()).finish_step(); }

}  // namespace chassis
