// Runs units in order: strategy events, full recompute, and the frames that wait for backward.
#include "host/execute/executor.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/selective.hpp"
#include "host/execute/block_run.hpp"
#include "host/execute/kernels.hpp"
#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

Tensor output(const StreamValues& outputs, const std::string& name) {
  const auto found = outputs.find(name);
  if (found == outputs.end()) throw plugin_error("the model's last block has no output \"" + name + "\"");
  return found->second;
}

// True if an axis divides an input of the block along that dim.
bool divides_inputs(const BlockType& block, DimId dim) {
  return std::any_of(block.inputs.begin(), block.inputs.end(), [&](const auto& input) {
    const std::vector<Sharding>& sharding = block.values[input.second].sharding;
    return std::find(sharding.begin(), sharding.end(), Sharding{Sharding::Kind::kShard, dim}) != sharding.end();
  });
}

// True if the logits of the last position cannot be computed from that position alone: some ops read other positions,
// and only one rank has it if positions are divided.
bool needs_all_positions(const BlockType& block) {
  return divides_inputs(block, CHASSIS_DIM_TIME) || !block.fields.empty() || block.op_over_positions() != nullptr ||
         std::ranges::any_of(block.ops, [](const Op& op) { return op.spec().is_attention(); });
}

void keep_last_position(const BlockType& block, bool is_input, StreamValues& stream) {
  const auto& values = is_input ? block.inputs : block.outputs;
  for (auto& [name, tensor] : stream)
    if (const auto value = values.find(name);
        value != values.end() && block.values[value->second].has(CHASSIS_DIM_TIME))
      tensor = tensor.narrow(1, tensor.size(1) - 1, 1).contiguous();
}

// If false, nothing before the unit is trained either.
bool needs_backward(const ResolvedBlock& block) {
  return block.inputs_need_grad || std::count(block.slot_trainable.begin(), block.slot_trainable.end(), 1) > 0;
}

}  // namespace

RankStages stages_of(const Pipeline& pipeline, int coordinate) {
  RankStages own{.stages = {}, .units = {}, .num_stages = pipeline.num_stages()};
  for (int chunk = 0; chunk < pipeline.stages().num_chunks(coordinate); ++chunk) {
    own.stages.push_back(pipeline.stages().stage(coordinate, chunk));
    own.units.push_back(pipeline.units[static_cast<size_t>(own.stages.back())]);
  }
  return own;
}

Executor::Executor(CompiledProgram compiled, ExecutorParts parts)
    : compiled_(std::move(compiled)),
      backend_(parts.backend != nullptr ? parts.backend : std::make_shared<const Kernels>(compiled_.options().device)),
      events_(parts.events),
      collectives_(parts.collectives),
      own_(parts.stages ? *std::move(parts.stages) : RankStages{.stages = {0}, .units = {all_units()}}),
      links_(parts.links),
      trace_(parts.trace),
      keeps_failed_(parts.keeps_failed),
      unit_names_(trace_ ? compiled_.program().unit_names() : std::vector<std::string>()) {}

void Executor::enter(const char* phase, int microbatch, size_t unit) const {
  backend_->enter_unit(phase, microbatch, static_cast<int64_t>(unit));
}

std::vector<RouterLoad> Executor::take_router_loads() {
  return router_loads_.take([this](size_t unit, const std::string& output) {
    const BlockType& block = resolved(Purpose::kTraining).running(unit).block;
    return is_own_part(compiled_.layout(), block.values[block.outputs.at(output)]);
  });
}

void Executor::visit_saved(const SavedTensorVisitor& visit) const {
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  for (const auto& [key, mb] : microbatches_) {
    for (size_t i = 0; i < mb.kept.size(); ++i) {
      const size_t unit = mb.first_unit + i;
      for (const auto& [name, tensor] : mb.kept[i].inputs)
        if (tensor) visit(mb.number, unit, name, false, tensor);
      if (!mb.kept[i].frame) continue;
      const ResolvedBlock& block = program.running(unit);
      const Frame& frame = *mb.kept[i].frame;
      for (ValueId v = 0; v < frame.values.size(); ++v)
        if (frame.values[v]) visit(mb.number, unit, block.block.values[v].name, false, frame.values[v]);
      for (ValueId v = 0; v < frame.gradients.size(); ++v)
        if (frame.gradients[v]) visit(mb.number, unit, block.block.values[v].name, false, frame.gradients[v]);
      for (size_t n = 0; n < frame.saved.size(); ++n)
        for (const Tensor& tensor : frame.saved[n])
          if (tensor) visit(mb.number, unit, block.nodes[n].name, true, tensor);
    }
  }
}

void Executor::forget() {
  microbatches_.clear();
  values_.clear();
  gradients_.clear();
}

int64_t Executor::size_of(DimId dim, const Fields& fields) const {
  std::optional<int64_t> size;
  std::string from;
  for (const auto& [name, field] : compiled_.program().fields) {
    const auto at = std::find(field.dims.begin(), field.dims.end(), dim);
    const auto given = fields.find(name);
    if (at == field.dims.end() || given == fields.end()) continue;
    const int64_t found = given->second.size(static_cast<int>(at - field.dims.begin()));
    if (size && *size != found)
      throw plugin_error("dim '" + compiled_.program().dims[dim].name + "' has size " + std::to_string(*size) +
                         " in field '" + from + "' of the batch, and " + std::to_string(found) + " in '" + name + "'");
    size = found;
    from = name;
  }
  if (!size) throw plugin_error("no field of the batch has the dim " + compiled_.program().dims[dim].name);
  return *size;
}

DimSizes Executor::sizes_of(const Fields& fields) const {
  const Program& program = compiled_.program();
  DimSizes sizes;
  for (DimId dim = 0; dim < program.dims.size(); ++dim)
    if (!program.dims[dim].is_fixed()) sizes.set(program, dim, size_of(dim, fields));
  return sizes;
}

RunContext Executor::context(size_t unit, const Microbatch& mb, KeyValueCaches caches) const {
  RunContext context;
  context.backend = backend_.get();
  context.program = &compiled_.program();
  context.layout = &compiled_.layout();
  context.options = &compiled_.options();
  context.parameters = &compiled_.parameters().of_unit(unit);
  context.collectives = collectives_;
  context.caches = caches;
  context.unit = unit;
  context.sizes = mb.sizes;
  context.loss_scale = mb.loss_scale;
  context.random = mb.random;
  context.trace = trace_;
  context.microbatch = mb.number;
  return context;
}

StreamValues Executor::run_units(const ResolvedProgram& resolved, UnitRange units, StreamValues stream, Microbatch& mb,
                                 KeyValueCaches caches, bool last_position_only) {
  const bool training = resolved.purpose == Purpose::kTraining;
  if (training) {
    mb.first_unit = units.begin;
    mb.kept.resize(units.end - units.begin);
  }
  for (size_t unit = units.begin; unit < units.end; ++unit) {
    RunContext run = context(unit, mb, caches);
    const bool narrows = last_position_only && unit + 1 == resolved.units.size();
    const bool narrows_after = narrows && needs_all_positions(resolved.running(unit).block);
    if (narrows && !narrows_after) {
      keep_last_position(resolved.running(unit).block, true, stream);
      run.sizes.time = 1;
    }
    const bool keeps_frame = training && spec_of(resolved.recompute[unit]).keeps_frame;
    const ResolvedBlock& block = resolved.running(unit);
    const char* const phase = training ? "forward" : "evaluation";
    enter(phase, mb.number, unit);
    const ScopedSpan span(trace_, TraceTrack::kUnits, name_of(unit), phase, mb.number, static_cast<int64_t>(unit));
    if (events_) events_->pre_forward(unit, {.training = training, .microbatch = mb.number});
    Frame scratch;
    if (keeps_frame) mb.of(unit).frame = std::make_unique<Frame>();
    if (training && !keeps_frame) mb.of(unit).inputs = stream;
    stream = run_forward(block, run, stream, mb.fields, keeps_frame, keeps_frame ? *mb.of(unit).frame : scratch);
    if (training && !keeps_frame) mb.of(unit).choices = std::move(scratch.choices);
    if (training) router_loads_.add(unit, stream);
    if (events_) events_->post_forward(unit, {.training = training, .microbatch = mb.number});
    if (narrows_after) keep_last_position(block.block, false, stream);
  }
  return stream;
}

StreamValues Executor::forward(int microbatch, UnitRange units, const Fields& fields, StreamValues inputs,
                               double loss_scale, RandomBits random) {
  return forward(microbatch, units, fields, sizes_of(fields), std::move(inputs), loss_scale, random);
}

StreamValues Executor::forward(int microbatch, UnitRange units, const Fields& fields, DimSizes sizes,
                               StreamValues inputs, double loss_scale, RandomBits random) {
  Microbatch& mb = microbatches_[{microbatch, units.begin}];
  mb = {};
  mb.number = microbatch;
  mb.fields = fields;
  mb.sizes = std::move(sizes);
  mb.loss_scale = loss_scale;
  mb.random = random;
  return run_units(resolved(Purpose::kTraining), units, std::move(inputs), mb, {}, false);
}

Tensor Executor::forward(int microbatch, const Fields& fields, double loss_scale, RandomBits random) {
  return output(forward(microbatch, all_units(), fields, {}, loss_scale, random), kLossOutput);
}

void Executor::backward(int microbatch, bool last) { backward(microbatch, all_units(), {}, last); }

StreamValues Executor::backward(int microbatch, UnitRange units, StreamValues gradients, bool last) {
  auto node = microbatches_.extract({microbatch, units.begin});
  CHASSIS_CHECK(!node.empty() && !node.mapped().awaits_params,
                "backward of a micro-batch whose forward did not run, or whose backward_inputs did");
  try {
    return run_backward_units(node.mapped(), units, std::move(gradients),
                              {.last_microbatch = last, .microbatch = microbatch});
  } catch (...) {
    if (keeps_failed_) microbatches_.insert(std::move(node));
    throw;
  }
}

StreamValues Executor::backward_inputs(int microbatch, UnitRange units, StreamValues gradients) {
  const auto found = microbatches_.find({microbatch, units.begin});
  CHASSIS_CHECK(found != microbatches_.end() && !found->second.awaits_params,
                "backward_inputs of a micro-batch whose forward did not run, or a second one");
  found->second.awaits_params = true;
  return run_backward_units(found->second, units, std::move(gradients), {.microbatch = microbatch, .params = false});
}

void Executor::backward_params(int microbatch, UnitRange units, bool last) {
  auto node = microbatches_.extract({microbatch, units.begin});
  CHASSIS_CHECK(!node.empty() && node.mapped().awaits_params,
                "backward_params of a micro-batch whose backward_inputs did not run");
  Microbatch& mb = node.mapped();
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  const UnitEvents::Flags flags{.last_microbatch = last, .microbatch = microbatch, .inputs = false};
  for (size_t unit = units.end; unit-- > units.begin;) {
    const ResolvedBlock& block = program.running(unit);
    if (!needs_backward(block)) return;
    enter("backward of parameters", microbatch, unit);
    const ScopedSpan span(trace_, TraceTrack::kUnits, name_of(unit), "backward of parameters", microbatch,
                          static_cast<int64_t>(unit));
    if (events_) events_->pre_backward(unit, flags);
    run_backward_params(block, context(unit, mb, {}), *mb.of(unit).frame);
    mb.of(unit).frame.reset();
    if (events_) events_->post_backward(unit, flags);
  }
}

StreamValues Executor::run_backward_units(Microbatch& mb, UnitRange units, StreamValues gradients,
                                          UnitEvents::Flags flags) {
  const UnitEvents::Flags again{
      .recompute = true, .last_microbatch = flags.last_microbatch, .microbatch = flags.microbatch};
  const ResolvedProgram& program = resolved(Purpose::kTraining);
  for (size_t unit = units.end; unit-- > units.begin;) {
    const ResolvedBlock& block = program.running(unit);
    if (!needs_backward(block)) return {};
    Microbatch::Kept& kept = mb.of(unit);
    const RunContext run = context(unit, mb, {});
    enter("backward", mb.number, unit);
    const ScopedSpan span(trace_, TraceTrack::kUnits, name_of(unit), "backward", mb.number, static_cast<int64_t>(unit));
    if (events_) events_->pre_backward(unit, flags);
    if (!spec_of(program.recompute[unit]).keeps_frame) {
      enter("recomputation", mb.number, unit);
      const ScopedSpan again_span(trace_, TraceTrack::kUnits, name_of(unit), "recomputation", mb.number,
                                  static_cast<int64_t>(unit));
      if (events_) events_->pre_forward(unit, again);
      kept.frame = std::make_unique<Frame>();
      kept.frame->choices = std::move(kept.choices);
      run_forward(block, run, kept.inputs, mb.fields, true, *kept.frame);
      kept.inputs.clear();
      if (events_) events_->post_forward(unit, again);
      enter("backward", mb.number, unit);
    }
    if (flags.params) {
      gradients = run_backward(block, run, std::move(gradients), *kept.frame);
      kept.frame.reset();
    } else {
      gradients = run_backward_inputs(block, run, std::move(gradients), *kept.frame);
    }
    if (events_) events_->post_backward(unit, flags);
  }
  return gradients;
}

// ---- the stages of this rank

std::vector<StreamSpec> Executor::stream_into(Purpose purpose, size_t unit, const DimSizes& sizes) const {
  const BlockType& block = resolved(purpose).running(unit).block;
  std::vector<StreamSpec> out;
  for (const auto& [name, id] : block.inputs) {
    const GraphValue& value = block.values[id];
    out.push_back({name, compiled_.layout().local_shape(compiled_.program(), value, sizes),
                   dtype_of(value, compiled_.options().compute)});
  }
  return out;
}

StreamValues Executor::take(std::map<std::pair<int, int>, StreamValues>& waiting, int from_stage, int to_stage,
                            int microbatch, const std::vector<StreamSpec>& specs) {
  if (!has_stage(from_stage)) return links_->receive(from_stage, to_stage, specs, device());
  auto node = waiting.extract({to_stage, microbatch});
  CHASSIS_CHECK(!node.empty(), "a stage runs before the one that it needs");
  return std::move(node.mapped());
}

namespace {

// Selects the values of the specs; gradients that no op computed are zero.
StreamValues chosen(StreamValues values, const std::vector<StreamSpec>& specs, Device device) {
  StreamValues out;
  for (const StreamSpec& spec : specs) {
    Tensor& value = values[spec.name];
    if (!value) value = Tensor::zeros(spec.sizes, spec.dtype, device);
    if (value.sizes() != spec.sizes || value.dtype() != spec.dtype)
      throw internal_error("'" + spec.name + "' leaves its stage as " + text(Shape(value.sizes())) + " " +
                           std::string(dtype_name(value.dtype())) + ", expected " + text(Shape(spec.sizes)) + " " +
                           std::string(dtype_name(spec.dtype)));
    out[spec.name] = value.contiguous();
  }
  return out;
}

}  // namespace

void Executor::hand_on(std::map<std::pair<int, int>, StreamValues>& waiting, int from_stage, int to_stage,
                       int microbatch, StreamValues values, const std::vector<StreamSpec>& specs) {
  values = chosen(std::move(values), specs, device());
  if (has_stage(to_stage))
    waiting[{to_stage, microbatch}] = std::move(values);
  else
    links_->send(from_stage, to_stage, std::move(values));
}

StreamValues Executor::forward_stage(const Work& work, const Fields& fields, double loss_scale, RandomBits random) {
  const auto chunk = static_cast<size_t>(work.chunk);
  const int stage = own_.stages[chunk];
  const UnitRange units = own_.units[chunk];
  StreamValues stream;
  const DimSizes sizes = sizes_of(fields);
  if (stage > 0)
    stream = take(values_, stage - 1, stage, work.microbatch, stream_into(Purpose::kTraining, units.begin, sizes));
  stream = forward(work.microbatch, units, fields, sizes, std::move(stream), loss_scale, random);
  if (stage + 1 == own_.num_stages) return stream;
  hand_on(values_, stage, stage + 1, work.microbatch, std::move(stream),
          stream_into(Purpose::kTraining, units.end, sizes));
  return {};
}

void Executor::set_output_gradients(int microbatch, StreamValues gradients) {
  CHASSIS_CHECK(has_stage(own_.num_stages - 1), "gradients of outputs on a rank that computes none");
  gradients_[{own_.num_stages, microbatch}] = std::move(gradients);
}

void Executor::backward_stage(const Work& work, bool last) {
  const auto chunk = static_cast<size_t>(work.chunk);
  const int stage = own_.stages[chunk];
  const UnitRange units = own_.units[chunk];
  if (work.kind == Work::Kind::kBackwardParams) return backward_params(work.microbatch, units, last);
  const auto needs_gradient = [&](size_t unit) { return resolved(Purpose::kTraining).running(unit).inputs_need_grad; };
  const auto found = microbatches_.find({work.microbatch, units.begin});
  CHASSIS_CHECK(found != microbatches_.end(), "backward of a micro-batch whose forward did not run");
  // Computed first, because backward drops the micro-batch.
  std::vector<StreamSpec> sent;
  if (stage > 0 && needs_gradient(units.begin))
    sent = stream_into(Purpose::kTraining, units.begin, found->second.sizes);
  StreamValues gradients;
  if (stage + 1 == own_.num_stages) {
    if (auto given = gradients_.extract({own_.num_stages, work.microbatch})) gradients = std::move(given.mapped());
  } else if (needs_gradient(units.end)) {
    gradients = take(gradients_, stage + 1, stage, work.microbatch,
                     stream_into(Purpose::kTraining, units.end, found->second.sizes));
  }
  gradients = work.kind == Work::Kind::kBackward ? backward(work.microbatch, units, std::move(gradients), last)
                                                 : backward_inputs(work.microbatch, units, std::move(gradients));
  if (stage > 0 && needs_gradient(units.begin))
    hand_on(gradients_, stage, stage - 1, work.microbatch, std::move(gradients), sent);
}

// Runs this rank's stages one after another. Returns the outputs of the last stage, or nothing if this rank lacks it.
StreamValues Executor::infer(Purpose purpose, const Fields& fields, const DimSizes& sizes, KeyValueCaches caches,
                             bool last_position_only) {
  StreamValues out;
  for (size_t chunk = 0; chunk < own_.stages.size(); ++chunk) {
    const int stage = own_.stages[chunk];
    const UnitRange units = own_.units[chunk];
    Microbatch mb;
    mb.fields = fields;
    mb.sizes = sizes;
    StreamValues stream;
    if (stage > 0) stream = take(values_, stage - 1, stage, 0, stream_into(purpose, units.begin, sizes));
    stream = run_units(resolved(purpose), units, std::move(stream), mb, caches, last_position_only);
    if (stage + 1 == own_.num_stages)
      out = std::move(stream);
    else
      hand_on(values_, stage, stage + 1, 0, std::move(stream), stream_into(purpose, units.end, sizes));
  }
  return out;
}

StreamValues Executor::outputs(Purpose purpose, const Fields& fields) {
  return infer(purpose, fields, sizes_of(fields), {}, false);
}

Tensor Executor::loss(const Fields& fields) {
  const StreamValues made = outputs(Purpose::kLoss, fields);
  return has_stage(own_.num_stages - 1) ? output(made, kLossOutput) : Tensor();
}

std::string Executor::refusal_of_cache() const {
  for (const auto& unit : resolved(Purpose::kLogits).units)
    if (const Op* op = unit->block.op_over_positions())
      return op->id.text() + " '" + op->name + "' of block '" + unit->block.name + "'";
  return {};
}

Tensor Executor::logits(const Fields& fields, KeyValueCaches caches, bool last_position_only) {
  DimSizes sizes = sizes_of(fields);
  CHASSIS_CHECK(caches.empty() || static_cast<int64_t>(caches.size()) == sizes.batch, "each row has a cache");
  StreamValues outputs = infer(Purpose::kLogits, fields, sizes, caches, last_position_only);
  for (KeyValueCache* cache : caches) cache->advance(sizes.time);
  Tensor own = has_stage(own_.num_stages - 1) ? output(outputs, "logits") : Tensor();
  if (links_ == nullptr) return own;
  const BlockType& block = resolved(Purpose::kLogits).units.back()->block;
  const GraphValue& value = block.values[block.outputs.at("logits")];
  if (last_position_only) sizes.time = 1;
  const StreamSpec spec{"logits", compiled_.layout().local_shape(compiled_.program(), value, sizes),
                        dtype_of(value, compiled_.options().compute)};
  return links_->share_last(std::move(own), spec, device());
}

}  // namespace chassis
