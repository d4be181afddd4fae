#include "host/program/executor.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/program/providers.hpp"
#include "host/program/selective.hpp"

namespace chassis {

Executor::Executor(const Program& program, const ProgramLayout& layout, ParameterTable& parameters,
                   ResolveOptions options, Recompute recompute, UnitEvents* events, Collectives* collectives)
    : program_(program),
      layout_(layout),
      parameters_(parameters),
      options_(std::move(options)),
      recompute_(recompute),
      events_(events),
      collectives_(collectives) {
  for (const auto* providers : {&options_.attention, &options_.kernels})
    for (const OpsProvider& provider : *providers) check_provider(provider);
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      place_in_chain_.push_back(chain.blocks.size() > 1 ? std::optional(static_cast<int64_t>(i)) : std::nullopt);
}

const ResolvedProgram& Executor::resolved(Purpose purpose) {
  auto [found, fresh] = resolved_.try_emplace(purpose);
  if (fresh) {
    // Nodes point into options_, whose lists stay as they are.
    options_.purpose = purpose;
    found->second = resolve_program(program_, layout_, parameters_, options_);
    // Once: evaluation has the nodes of training. Logits lack the loss.
    if (purpose != Purpose::kLogits && !std::exchange(counted_idle_, true))
      count_idle_providers(found->second, options_);
  }
  return found->second;
}

const ResolvedBlock& Executor::selective(const ResolvedBlock& block) {
  auto found = selective_.find(&block);
  if (found == selective_.end())
    found = selective_.emplace(&block, recompute_selectively(block, options_.compute)).first;
  return found->second;
}

int64_t Executor::max_recomputed_blocks() const {
  size_t most = 1;
  for (const Chain& chain : program_.chains) most = std::max(most, chain.blocks.size());
  return most > 1 ? static_cast<int64_t>(most) : 0;
}

RunContext Executor::context(size_t unit, const Microbatch& mb, KeyValueCache* cache) const {
  const Tensor& ids = mb.fields.at("input_ids");
  RunContext context;
  context.program = &program_;
  context.layout = &layout_;
  context.options = &options_;
  context.parameters = &parameters_.of_unit(unit);
  context.collectives = collectives_;
  context.cache = cache;
  context.unit = unit;
  context.batch = ids.size(0);
  context.time = ids.size(1);
  context.loss_scale = mb.loss_scale;
  context.rehearsal = rehearsal_;
  return context;
}

std::map<std::string, Tensor> Executor::run_units(const ResolvedProgram& resolved, Microbatch& mb, KeyValueCache* cache,
                                                  bool last_position_only) {
  const bool training = resolved.purpose == Purpose::kTraining;
  std::map<std::string, Tensor> stream;
  if (training) {
    mb.frames.resize(resolved.units.size());
    mb.inputs.resize(resolved.units.size());
  }
  for (size_t unit = 0; unit < resolved.units.size(); ++unit) {
    RunContext run = context(unit, mb, cache);
    if (last_position_only && unit + 1 == resolved.units.size()) {
      for (auto& [name, tensor] : stream) tensor = tensor.narrow(1, tensor.size(1) - 1, 1).contiguous();
      run.time = 1;
    }
    const BlockRecompute mode = training ? recompute_of(recompute_, unit) : BlockRecompute::kNone;
    const bool keeps_frame = training && mode != BlockRecompute::kFull;
    const ResolvedBlock& whole = *resolved.units[unit];
    const ResolvedBlock& block = mode == BlockRecompute::kSelective ? selective(whole) : whole;
    if (events_) events_->pre_forward(unit, {.training = training});
    Frame scratch;
    if (keeps_frame) mb.frames[unit] = std::make_unique<Frame>();
    if (mode == BlockRecompute::kFull) mb.inputs[unit] = stream;
    stream = run_forward(block, run, stream, mb.fields, keeps_frame, keeps_frame ? *mb.frames[unit] : scratch);
    if (events_) events_->post_forward(unit, {.training = training});
  }
  return stream;
}

Tensor Executor::forward(int microbatch, const Fields& fields, double loss_scale) {
  Microbatch& mb = microbatches_[microbatch];
  mb = {};
  mb.fields = fields;
  mb.loss_scale = loss_scale;
  auto outputs = run_units(resolved(Purpose::kTraining), mb, nullptr, false);
  const auto loss = outputs.find("loss");
  if (loss == outputs.end()) throw plugin_error("the model's last block puts out no \"loss\"");
  return loss->second;
}

void Executor::backward(int microbatch, bool last) {
  const UnitEvents::Flags flags{.last_microbatch = last}, again{.recompute = true, .last_microbatch = last};
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  auto node = microbatches_.extract(microbatch);
  CHASSIS_CHECK(!node.empty(), "backward of a micro-batch whose forward did not run");
  Microbatch& mb = node.mapped();
  std::map<std::string, Tensor> gradients;
  for (size_t unit = program.units.size(); unit-- > 0;) {
    const ResolvedBlock& whole = *program.units[unit];
    const bool needed = whole.inputs_need_grad ||
                        std::count(whole.slot_trainable.begin(), whole.slot_trainable.end(), 1) > 0;
    if (!needed) break;  // nothing before it is trained either
    const BlockRecompute mode = recompute_of(recompute_, unit);
    const ResolvedBlock& block = mode == BlockRecompute::kSelective ? selective(whole) : whole;
    const RunContext run = context(unit, mb, nullptr);
    if (events_) events_->pre_backward(unit, flags);
    if (mode == BlockRecompute::kFull) {
      if (events_) events_->pre_forward(unit, again);
      mb.frames[unit] = std::make_unique<Frame>();
      run_forward(block, run, mb.inputs[unit], mb.fields, true, *mb.frames[unit]);
      mb.inputs[unit].clear();
      if (events_) events_->post_forward(unit, again);
    }
    gradients = run_backward(block, run, std::move(gradients), *mb.frames[unit]);
    mb.frames[unit].reset();
    if (events_) events_->post_backward(unit, flags);
  }
}

Tensor Executor::loss(const Fields& fields) {
  Microbatch mb;
  mb.fields = fields;
  return run_units(resolved(Purpose::kLoss), mb, nullptr, false).at("loss");
}

Tensor Executor::logits(const Fields& fields, KeyValueCache* cache, bool last_position_only) {
  Microbatch mb;
  mb.fields = fields;
  Tensor logits = run_units(resolved(Purpose::kLogits), mb, cache, last_position_only).at("logits");
  if (cache) cache->advance(fields.at("input_ids").size(1));
  return logits;
}

uint64_t Executor::planned_activation_bytes(Recompute recompute) {
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  uint64_t held = 0, peak = 0;
  for (size_t unit = 0; unit < program.units.size(); ++unit) {
    const BlockRecompute mode = recompute_of(recompute, unit);
    const ResolvedBlock& block = *program.units[unit];
    const ResolvedBlock& kept = mode == BlockRecompute::kSelective ? selective(block) : block;
    const uint64_t inside = std::max(block.kept_bytes + block.saved_bytes, block.peak_forward_bytes) +
                            block.workspace_bytes + 2 * block.input_bytes;
    peak = std::max(peak, held + inside);
    held += block.input_bytes;
    if (mode != BlockRecompute::kFull) held += kept.kept_bytes + kept.saved_bytes;
  }
  return std::max(peak, held);
}

}  // namespace chassis
