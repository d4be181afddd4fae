// The copy is compiled from the same recording, with all parameters frozen, and placed by strategies of its own.
#include "host/session/reference_model.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"
#include "host/session/freeze.hpp"

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

ReferenceModel::ReferenceModel(Session& session) : session_(session) {
  if (reference_purpose(session) == Purpose::kReference) {
    session.compiled().resolved(Purpose::kReference);
    return;
  }
  copy_ = std::make_unique<PlacedModel>();
  const Settings& settings = session.settings();
  RunPlugins& plugins = session.plugins();
  copy_->mesh = session.state().model.mesh;
  copy_->mesh.strategies = std::make_shared<Strategies>(stack_members(settings, plugins));
  copy_->open_passes(settings, plugins, session.model());
  copy_->compile(session.model().recording(settings.model, session.config().use()),
                 {.objective = session.objective()->request(),
                  .freeze = freeze_all,
                  .resolve = session.compiled().options(),
                  .purposes = {Purpose::kLoss}});
  copy_->place(session.config());
}

void ReferenceModel::allocate(std::optional<Device> rehearsal) {
  if (!copy_) return;
  RunState& state = session_.state();
  copy_->allocate(*state.communicator, state.collectives.get(), {.rehearsal = rehearsal}, &session_.parameters());
}

void ReferenceModel::take() {
  if (!copy_) return;
  copy_->parameters().copy_from(session_.parameters());
  copy_->events->refresh();
}

StreamValues ReferenceModel::outputs(const Fields& fields) {
  return copy_ ? copy_->executor->outputs(Purpose::kLoss, fields)
               : session_.executor().outputs(Purpose::kReference, fields);
}

void ReferenceModel::finish_step() { (copy_ ? *copy_->events : session_.ranks().events()).finish_step(); }

}  // namespace chassis
