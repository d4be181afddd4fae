// Runs units in order: strategy events, full recompute, and the frames that wait for backward.
#include "host/program/executor.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/program/selective.hpp"

namespace chassis {
namespace {

Tensor output(const StreamValues& outputs, const std::string& name) {
  const auto found = outputs.find(name);
  if (found == outputs.end()) throw plugin_error("the model's last block has no output \"" + name + "\"");
  return found->second;
}

// Whether an axis divides what the block gets along that dim.
bool divides_inputs(const BlockType& block, DimId dim) {
  return std::any_of(block.inputs.begin(), block.inputs.end(), [&](const auto& input) {
    const std::vector<Sharding>& sharding = block.values[input.second].sharding;
    return std::find(sharding.begin(), sharding.end(), Sharding{Sharding::Kind::kShard, dim}) != sharding.end();
  });
}

void keep_last_position(StreamValues& stream) {
  for (auto& [name, tensor] : stream) tensor = tensor.narrow(1, tensor.size(1) - 1, 1).contiguous();
}

// If not, nothing before the unit is trained either.
bool needs_backward(const ResolvedBlock& block) {
  return block.inputs_need_grad || std::count(block.slot_trainable.begin(), block.slot_trainable.end(), 1) > 0;
}

}  // namespace

Executor::Executor(CompiledProgram& compiled, UnitEvents* events, Collectives* collectives)
    : compiled_(compiled), events_(events), collectives_(collectives) {}

int64_t Executor::max_recomputed_blocks() const {
  size_t longest = 1;
  for (const Chain& chain : compiled_.program.chains) longest = std::max(longest, chain.blocks.size());
  return longest > 1 ? static_cast<int64_t>(longest) : 0;
}

int64_t Executor::size_of(DimId dim, const Fields& fields) const {
  for (const auto& [name, field] : compiled_.program.fields) {
    const auto at = std::find(field.dims.begin(), field.dims.end(), dim);
    const auto given = fields.find(name);
    if (at != field.dims.end() && given != fields.end())
      return given->second.size(static_cast<int>(at - field.dims.begin()));
  }
  throw plugin_error("no field of the batch has the dim " + compiled_.program.dims[dim].name);
}

RunContext Executor::context(size_t unit, const Microbatch& mb, KeyValueCache* cache) const {
  RunContext context;
  context.program = &compiled_.program;
  context.layout = &compiled_.layout;
  context.options = &compiled_.options;
  context.parameters = &compiled_.parameters->of_unit(unit);
  context.collectives = collectives_;
  context.cache = cache;
  context.unit = unit;
  context.batch = size_of(CHASSIS_DIM_BATCH, mb.fields);
  context.time = size_of(CHASSIS_DIM_TIME, mb.fields);
  context.loss_scale = mb.loss_scale;
  context.random = mb.random;
  context.rehearsal = rehearsal_;
  return context;
}

StreamValues Executor::run_units(const ResolvedProgram& resolved, UnitRange units, StreamValues stream, Microbatch& mb,
                                 KeyValueCache* cache, bool last_position_only) {
  const bool training = resolved.purpose == Purpose::kTraining;
  if (training) {
    mb.frames.resize(resolved.units.size());
    mb.inputs.resize(resolved.units.size());
  }
  for (size_t unit = units.begin; unit < units.end; ++unit) {
    RunContext run = context(unit, mb, cache);
    const bool narrows = last_position_only && unit + 1 == resolved.units.size();
    // The last position is on one rank only if positions are divided; then all are computed.
    const bool narrows_after = narrows && divides_inputs(resolved.running(unit).block, CHASSIS_DIM_TIME);
    if (narrows && !narrows_after) {
      keep_last_position(stream);
      run.time = 1;
    }
    const BlockRecompute mode = training ? resolved.recompute[unit] : BlockRecompute::kNone;
    const bool keeps_frame = training && mode != BlockRecompute::kFull;
    const ResolvedBlock& block = resolved.running(unit);
    if (events_) events_->pre_forward(unit, {.training = training});
    Frame scratch;
    if (keeps_frame) mb.frames[unit] = std::make_unique<Frame>();
    if (mode == BlockRecompute::kFull) mb.inputs[unit] = stream;
    stream = run_forward(block, run, stream, mb.fields, keeps_frame, keeps_frame ? *mb.frames[unit] : scratch);
    if (events_) events_->post_forward(unit, {.training = training});
    if (narrows_after) keep_last_position(stream);
  }
  return stream;
}

StreamValues Executor::forward(int microbatch, UnitRange units, const Fields& fields, StreamValues inputs,
                               double loss_scale, RandomBits random) {
  Microbatch& mb = microbatches_[{microbatch, units.begin}];
  mb = {};
  mb.fields = fields;
  mb.loss_scale = loss_scale;
  mb.random = random;
  return run_units(resolved(Purpose::kTraining), units, std::move(inputs), mb, nullptr, false);
}

Tensor Executor::forward(int microbatch, const Fields& fields, double loss_scale, RandomBits random) {
  return output(forward(microbatch, all_units(), fields, {}, loss_scale, random), "loss");
}

void Executor::backward(int microbatch, bool last) { backward(microbatch, all_units(), {}, last); }

StreamValues Executor::backward(int microbatch, UnitRange units, StreamValues gradients, bool last) {
  auto node = microbatches_.extract({microbatch, units.begin});
  CHASSIS_CHECK(!node.empty() && !node.mapped().awaits_params,
                "backward of a micro-batch whose forward did not run, or whose backward_inputs did");
  return run_backward_units(node.mapped(), units, std::move(gradients), {.last_microbatch = last});
}

StreamValues Executor::backward_inputs(int microbatch, UnitRange units, StreamValues gradients) {
  const auto found = microbatches_.find({microbatch, units.begin});
  CHASSIS_CHECK(found != microbatches_.end() && !found->second.awaits_params,
                "backward_inputs of a micro-batch whose forward did not run, or a second one");
  found->second.awaits_params = true;
  return run_backward_units(found->second, units, std::move(gradients), {.params = false});
}

void Executor::backward_params(int microbatch, UnitRange units, bool last) {
  auto node = microbatches_.extract({microbatch, units.begin});
  CHASSIS_CHECK(!node.empty() && node.mapped().awaits_params,
                "backward_params of a micro-batch whose backward_inputs did not run");
  Microbatch& mb = node.mapped();
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  const UnitEvents::Flags flags{.last_microbatch = last, .inputs = false};
  for (size_t unit = units.end; unit-- > units.begin;) {
    const ResolvedBlock& block = program.running(unit);
    if (!needs_backward(block)) return;
    if (events_) events_->pre_backward(unit, flags);
    run_backward_params(block, context(unit, mb, nullptr), *mb.frames[unit]);
    mb.frames[unit].reset();
    if (events_) events_->post_backward(unit, flags);
  }
}

StreamValues Executor::run_backward_units(Microbatch& mb, UnitRange units, StreamValues gradients,
                                          UnitEvents::Flags flags) {
  const UnitEvents::Flags again{.recompute = true, .last_microbatch = flags.last_microbatch};
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  for (size_t unit = units.end; unit-- > units.begin;) {
    const ResolvedBlock& block = program.running(unit);
    if (!needs_backward(block)) return {};
    const RunContext run = context(unit, mb, nullptr);
    if (events_) events_->pre_backward(unit, flags);
    if (program.recompute[unit] == BlockRecompute::kFull) {
      if (events_) events_->pre_forward(unit, again);
      mb.frames[unit] = std::make_unique<Frame>();
      run_forward(block, run, mb.inputs[unit], mb.fields, true, *mb.frames[unit]);
      mb.inputs[unit].clear();
      if (events_) events_->post_forward(unit, again);
    }
    if (flags.params) {
      gradients = run_backward(block, run, std::move(gradients), *mb.frames[unit]);
      mb.frames[unit].reset();
    } else {
      gradients = run_backward_inputs(block, run, std::move(gradients), *mb.frames[unit]);
    }
    if (events_) events_->post_backward(unit, flags);
  }
  return gradients;
}

Tensor Executor::loss(const Fields& fields) {
  Microbatch mb;
  mb.fields = fields;
  return output(run_units(resolved(Purpose::kLoss), all_units(), {}, mb, nullptr, false), "loss");
}

Tensor Executor::logits(const Fields& fields, KeyValueCache* cache, bool last_position_only) {
  Microbatch mb;
  mb.fields = fields;
  Tensor logits =
      output(run_units(resolved(Purpose::kLogits), all_units(), {}, mb, cache, last_position_only), "logits");
  if (cache) cache->advance(size_of(CHASSIS_DIM_TIME, fields));
  return logits;
}

}  // namespace chassis
