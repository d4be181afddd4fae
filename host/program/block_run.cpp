// Walks the nodes of a block, calls kernels and collectives, and sums gradients.
#include "host/program/block_run.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/plugin/call.hpp"
#include "host/plugin/status.hpp"
#include "host/program/chunks.hpp"
#include "host/program/kernel_call.hpp"
#include "host/program/piece_calls.hpp"
#include "host/program/rehearsal.hpp"
#include "host/program/ring_attention.hpp"
#include "host/service/comm_device.hpp"
#include "host/service/log_sum.hpp"
#include "host/service/memory.hpp"
#include "host/service/step_place.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

// The run of a node: where the step is, and a span of the trace.
class NodeRun {
 public:
  NodeRun(const RunContext& context, const Node& node, const char* phase)
      : span_(context.trace, TraceTrack::kNodes, node.name, phase, context.microbatch,
              static_cast<int64_t>(context.unit), node.provider ? std::string_view(node.provider->name) : "") {
    if (!context.rehearsal) enter_node(&node.name);
  }

 private:
  const ScopedSpan span_;
};

class BlockRun {
 public:
  BlockRun(const ResolvedBlock& block, const RunContext& context, Frame& frame)
      : block_(block), context_(context), frame_(frame) {}

  std::map<std::string, Tensor> forward(const std::map<std::string, Tensor>& inputs, const Fields& fields,
                                        bool training) {
    MemoryTag tag(MemoryCategory::kActivations);
    frame_.values.assign(block_.block.values.size(), {});
    frame_.gradients.assign(block_.block.values.size(), {});
    frame_.saved.assign(block_.nodes.size(), {});
    frame_.done.assign(block_.nodes.size(), 0);
    for (const auto& [name, value] : block_.block.inputs) frame_.values[value] = inputs.at(name);
    for (const auto& [name, value] : block_.block.fields)
      if (auto field = fields.find(name); field != fields.end()) frame_.values[value] = field->second;
    for (size_t n = 0; n < block_.nodes.size(); ++n) {
      const Node& node = block_.nodes[n];
      const NodeRun here(context_, node, "forward");
      for (ValueId v : node.inputs) wait_for(v);
      if (node.provider)
        forward_node(n, training, false);
      else forward_collective(node);
      for (ValueId v : node.dead_after_forward) frame_.values[v].reset();
    }
    std::map<std::string, Tensor> outputs;
    for (const auto& [name, value] : block_.block.outputs) {
      outputs[name] = frame_.values[value];
      const bool kept = std::find(block_.kept.begin(), block_.kept.end(), value) != block_.kept.end();
      if (!kept || !training) frame_.values[value].reset();
    }
    return outputs;
  }

  // `defers_params`: leaves the gradients of parameters to backward_params().
  std::map<std::string, Tensor> backward(std::map<std::string, Tensor> output_gradients, bool defers_params) {
    MemoryTag tag(MemoryCategory::kActivations);
    defers_params_ = defers_params;
    for (auto& [name, gradient] : output_gradients)
      if (auto found = block_.block.outputs.find(name); found != block_.block.outputs.end())
        accumulate(found->second, std::move(gradient));
    output_gradients.clear();
    for (size_t n = block_.nodes.size(); n-- > 0;) {
      const Node& node = block_.nodes[n];
      for (size_t other : node.again_before_backward) run_again(other);
      const NodeRun here(context_, node, "backward");
      if (node.has_backward && !frame_.done[n]) {
        if (node.provider) backward_node(n);
        else backward_collective(node);
      }
      for (size_t shift : node.shifts_after_backward) send_back(block_.nodes[shift]);
      frame_.saved[n].clear();
      for (ValueId v : node.outputs) frame_.gradients[v].reset();
      for (ValueId v : node.dead_after_backward) frame_.values[v].reset();
    }
    std::map<std::string, Tensor> gradients;
    for (const auto& [name, value] : block_.block.inputs)
      if (frame_.gradients[value]) {
        Tensor& gradient = gradients[name] = std::move(frame_.gradients[value]);
        if (is_deferred(gradient)) gradient = gradient.clone();  // the receiver may add to it
      }
    if (defers_params) {
      frame_.values.clear();
      frame_.saved.clear();
      frame_.gradients.clear();
    }
    return gradients;
  }

  void backward_params() {
    for (DeferredParams& deferred : frame_.deferred) {
      run_deferred(deferred);
      deferred = {};
    }
    frame_.deferred.clear();
  }

 private:
  chassis_tensor_t handle(ValueId v) const { return v == kAbsent ? nullptr : frame_.values[v].handle(); }

  // `again`: backward runs the node again. Tensors saved for backward come from the node's last run.
  void forward_node(size_t n, bool training, bool again) {
    const Node& node = block_.nodes[n];
    const bool saves = training && node.has_backward && node.runs_again == again;
    if (ring_op(node) != nullptr) return forward_ring(n, saves);
    if (node.num_calls > 1) return forward_pieces(n, saves, again ? "forward again" : "forward");
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, true);
    call_.raw.flags = saves ? CHASSIS_CALL_TRAINING : 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) call_.inputs[i] = handle(node.inputs[i]);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, parameter(node.params[i]));
    call_.raw.query_offset = query_offset(node);
    Tensor cached[2];
    if (context_.cache && block_.block.ops[node.ops[0]].id == "attention") read_cache(node, cached);
    if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS))
      make_outputs(node, again ? node.overwritten_again : node.overwritten_input);
    const bool with_gradients =
        training && node.has_backward && node.flag(CHASSIS_KERNEL_FORWARD_BACKWARD) && is_loss(node);
    if (with_gradients) forward_backward(n);
    else
      run(node, node.provider->table->forward, again ? "forward again" : "forward");
    check_outputs(call_, block_, context_, node);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      Tensor& output = frame_.values[node.outputs[i]];
      output = KernelCall::take(call_.outputs[i]);
      if (node.has_logits) retag_memory(output, category_of(node.outputs[i]));
    }
    for (chassis_tensor_t& saved : call_.saved) {
      if (!saved) continue;
      Tensor taken = KernelCall::take(saved);  // freed at once if no backward follows
      if (call_.raw.flags & CHASSIS_CALL_TRAINING) frame_.saved[n].push_back(std::move(taken));
    }
    if ((call_.raw.flags & CHASSIS_CALL_TRAINING) && !with_gradients) check_saved(context_, node, frame_.saved[n]);
  }

  // ---- attention around the ranks of an axis

  const Op* ring_op(const Node& node) const {
    const Op& op = block_.block.ops[node.ops[0]];
    return op.attr(kRing) == nullptr ? nullptr : &op;
  }

  Ring ring_of(const Op& op) const {
    Ring ring;
    ring.axis = std::get<std::string>(*op.attr(kRing));
    const LayoutAxis& axis = context_.layout->axis(ring.axis);
    ring.num_ranks = axis.size, ring.rank = axis.coordinate;
    ring.collectives = context_.collectives;
    ring.skips_later_keys = op.attr_int("causal", 0) != 0 && op.attr_int("prefix", 0) == 0;
    return ring;
  }

  // Inputs 0 to 2 are the pieces of a call, the others are those of the whole rows.
  void lend_attention(const Node& node, bool forward, const Tensor& q, const Tensor& k, const Tensor& v,
                      AttentionOffsets offsets) {
    call_.reset(node, forward);
    call_.raw.flags = CHASSIS_CALL_TRAINING;
    call_.inputs[0] = q.handle(), call_.inputs[1] = k.handle(), call_.inputs[2] = v.handle();
    for (size_t i = 3; i < node.inputs.size(); ++i) call_.inputs[i] = handle(node.inputs[i]);
    call_.raw.query_offset = offsets.query;
    call_.raw.key_offset = offsets.key;
    call_.raw.num_positions = num_positions_;
  }

  PartialAttention attend(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                          AttentionOffsets offsets) {
    const std::vector<int64_t> sizes{q.size(0), q.size(1), q.size(2), v.size(3)},
        log_sum_sizes{q.size(0), q.size(2), q.size(1)};
    Tensor output = Tensor::empty(sizes, q.dtype(), context_.device());
    if (context_.rehearsal) {
      workspace(node, node.infer.workspace_forward_bytes);
      return {std::move(output), Tensor::empty(log_sum_sizes, Dtype::f32, context_.device())};
    }
    lend_attention(node, true, q, k, v, offsets);
    if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS)) call_.outputs[0] = output.release();
    run(node, node.provider->table->forward, "forward");
    if (call_.outputs[0] == nullptr || call_.saved[0] == nullptr)
      throw plugin_error(provider_on(node) + ": attention with key_part returned no output or no log sum");
    PartialAttention out{KernelCall::take(call_.outputs[0]), KernelCall::take(call_.saved[0])};
    if (out.output.sizes() != sizes || out.log_sum.sizes() != log_sum_sizes || out.log_sum.dtype() != Dtype::f32)
      throw plugin_error(provider_on(node) + ": attention with key_part returned an output " +
                         text(Shape(out.output.sizes())) + " and a log sum " + text(Shape(out.log_sum.sizes())) +
                         " for queries " + text(Shape(q.sizes())));
    return out;
  }

  std::array<Tensor, 3> attend_backward(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const PartialAttention& whole, const Tensor& gradient,
                                        AttentionOffsets offsets) {
    if (context_.rehearsal) {
      workspace(node, node.infer.workspace_backward_bytes);
      std::array<Tensor, 3> out;
      for (size_t i = 0; const Tensor* x : {&q, &k, &v}) out[i++] = Tensor::empty(x->sizes(), x->dtype(), x->device());
      return out;
    }
    lend_attention(node, false, q, k, v, offsets);
    call_.outputs[0] = whole.output.handle();
    call_.saved[0] = whole.log_sum.handle();
    call_.grad_outputs[0] = gradient.handle();
    run(node, node.provider->table->backward_inputs, "backward_inputs");
    std::array<Tensor, 3> out;
    for (size_t i = 0; i < out.size(); ++i)
      if (call_.grad_inputs[i]) out[i] = KernelCall::take(call_.grad_inputs[i]);
    return out;
  }

  void forward_ring(size_t n, bool saves) {
    const Node& node = block_.nodes[n];
    const Op& op = *ring_op(node);
    const Ring ring = ring_of(op);
    if (!node.flag(CHASSIS_KERNEL_LOG_SUM))
      throw plugin_error(provider_on(node) + " does not return the log sum that attention with key_part needs");
    const auto input = [&](size_t i) -> Tensor& { return frame_.values[node.inputs[i]]; };
    const AttendForward attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, AttentionOffsets offsets) {
      return this->attend(node, q, k, v, offsets);
    };
    num_positions_ = context_.time;
    Tensor& output = frame_.values[node.outputs[0]];
    if (context_.cache == nullptr) {
      PartialAttention whole = ring_forward(ring, input(0), input(1), input(2), attend);
      output = std::move(whole.output);
      if (saves) frame_.saved[n] = {std::move(whole.log_sum)};
      return;
    }
    // A cache holds the keys of all ranks, so nothing has to travel.
    Tensor cached[2];
    for (uint32_t i = 0; i < 2; ++i) {
      const Tensor all = collective({"comm.all_gather", ring.axis, 1, 0, 0.0, true}, input(1 + i));
      const Tensor row = all.size(1) > context_.time ? all.narrow(1, 0, context_.time).contiguous() : all;
      cached[i] = context_.cache->append(context_.unit, node.ops[0], i == 1, row).contiguous();
    }
    num_positions_ += context_.cache->length();
    output = attend_pieces(ring, input(0), cached[0], cached[1], context_.cache->length(), attend);
  }

  void backward_ring(size_t n) {
    const Node& node = block_.nodes[n];
    const auto input = [&](size_t i) -> Tensor& { return frame_.values[node.inputs[i]]; };
    const Tensor& gradient = frame_.gradients[node.outputs[0]];
    if (!gradient) return;
    num_positions_ = context_.time;
    std::array<Tensor, 3> gradients = ring_backward(
        ring_of(*ring_op(node)), input(0), input(1), input(2), {frame_.values[node.outputs[0]], frame_.saved[n].at(0)},
        gradient,
        [&](const Tensor& q, const Tensor& k, const Tensor& v, const PartialAttention& whole, const Tensor& of_output,
            AttentionOffsets offsets) { return attend_backward(node, q, k, v, whole, of_output, offsets); });
    for (size_t i = 0; i < gradients.size(); ++i)
      if (node.input_needs_grad[i]) accumulate(node.inputs[i], std::move(gradients[i]));
  }

  // ---- ops for which the rank has two pieces of every row

  void forward_pieces(size_t n, bool saves, const char* phase) {
    const Node& node = block_.nodes[n];
    const PieceCalls calls(block_, node, context_);
    const GraphValue& value = block_.block.values[node.outputs[0]];
    const Tensor output =
        Tensor::empty(context_.local_shape(value), dtype_of(value, context_.options->compute), context_.device());
    std::vector<Tensor> whole, here(node.inputs.size());
    for (const ValueId v : node.inputs) whole.push_back(v == kAbsent ? Tensor() : frame_.values[v]);
    if (context_.cache && block_.block.ops[node.ops[0]].id == "attention")
      for (uint32_t i : {1u, 2u}) whole[i] = context_.cache->append(context_.unit, node.ops[0], i == 2, whole[i]);
    std::vector<Tensor> saved;
    for (int64_t piece = 0; piece < kRowPieces; ++piece) {
      call_.reset(node, true);
      call_.raw.flags = saves ? CHASSIS_CALL_TRAINING : 0;
      call_.raw.query_offset = calls.query_offset(piece);
      for (size_t i = 0; i < here.size(); ++i) here[i] = calls.input(i, whole[i], piece);
      lend(here, call_.inputs);
      Tensor place = piece_of(output, kTimeDim, piece);
      if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS))
        call_.outputs[0] =
            (place.is_contiguous() ? place : Tensor::empty(place.sizes(), place.dtype(), place.device())).release();
      run(node, node.provider->table->forward, phase, calls.context());
      check_outputs(call_, block_, calls.context(), node);
      const Tensor made = KernelCall::take(call_.outputs[0]);
      if (!made.shares_storage_with(output)) place.copy_from(made);
      if (!saves) continue;
      std::vector<Tensor> of_call;
      for (chassis_tensor_t& handle : call_.saved)
        if (handle) of_call.push_back(KernelCall::take(handle));
      check_saved(calls.context(), node, of_call, calls.sees_all(piece));
      std::ranges::move(of_call, std::back_inserter(saved));
    }
    frame_.values[node.outputs[0]] = output;
    if (saves) frame_.saved[n] = std::move(saved);
  }

  void backward_pieces(size_t n) {
    const Node& node = block_.nodes[n];
    const Tensor& gradient = frame_.gradients[node.outputs[0]];
    if (!gradient || std::ranges::none_of(node.input_needs_grad, [](uint8_t needs) { return needs != 0; })) return;
    const PieceCalls calls(block_, node, context_);
    std::vector<Tensor> here(node.inputs.size()), sums(node.inputs.size());
    for (int64_t piece = kRowPieces; piece-- > 0;) {  // the last one first: it sees most keys
      call_.reset(node, false);
      call_.raw.flags = CHASSIS_CALL_TRAINING;
      call_.raw.query_offset = calls.query_offset(piece);
      for (size_t i = 0; i < here.size(); ++i)
        if (node.keeps_input(i) && node.inputs[i] != kAbsent)
          here[i] = calls.input(i, frame_.values[node.inputs[i]], piece);
      lend(here, call_.inputs);
      const Tensor of_output = piece_of(gradient, kTimeDim, piece).contiguous();
      call_.grad_outputs[0] = of_output.handle();
      Tensor output;
      if (node.keeps_output(0)) output = piece_of(frame_.values[node.outputs[0]], kTimeDim, piece).contiguous();
      call_.outputs[0] = output.handle();
      const size_t num_saved = node.infer.num_saved, first = static_cast<size_t>(piece) * num_saved;
      for (size_t i = 0; i < num_saved; ++i) call_.saved[i] = frame_.saved[n].at(first + i).handle();
      run_backward_of_piece(node, calls, piece);
      for (size_t i = 0; i < sums.size(); ++i)
        if (node.inputs[i] != kAbsent) take_gradient(node, i, calls, piece, sums[i]);
    }
    for (size_t i = 0; i < sums.size(); ++i)
      if (sums[i]) accumulate(node.inputs[i], std::move(sums[i]));
  }

  void run_backward_of_piece(const Node& node, const PieceCalls& calls, int64_t piece) {
    if (context_.rehearsal)
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.input_needs_grad[i])
          call_.grad_inputs[i] =
              Tensor::empty(calls.input_sizes(i, piece),
                            dtype_of(block_.block.values[node.inputs[i]], context_.options->compute), context_.device())
                  .release();
    if (node.flag(CHASSIS_KERNEL_COMPOSED) && !context_.rehearsal)
      run_composed(node);
    else
      run(node, node.provider->table->backward_inputs, "backward_inputs", calls.context());
  }

  void take_gradient(const Node& node, size_t i, const PieceCalls& calls, int64_t piece, Tensor& sum) {
    Tensor part;
    if (call_.grad_inputs[i]) {
      check_gradient(call_, block_, calls.context(), node, i, calls.input_sizes(i, piece));
      part = KernelCall::take(call_.grad_inputs[i]);
    } else if (node.input_needs_grad[i]) {
      count_missing_gradient(node, i);
    }
    if (node.input_needs_grad[i]) calls.add_gradient(i, std::move(part), piece, sum);
  }

  void run_again(size_t n) {
    const Node& node = block_.nodes[n];
    const NodeRun here(context_, node, "forward again");
    if (node.provider)
      forward_node(n, true, true);
    else
      forward_collective(node);
    for (ValueId v : node.dead_after_again) frame_.values[v].reset();
  }

  // Keys cover all positions so far, queries only the new ones. Document ids are not needed: each row is one document.
  void read_cache(const Node& node, Tensor (&cached)[2]) {
    for (uint32_t i = 0; i < 2; ++i) {
      cached[i] = context_.cache->append(context_.unit, node.ops[0], i == 1, frame_.values[node.inputs[1 + i]]);
      call_.inputs[1 + i] = cached[i].handle();
    }
    call_.raw.query_offset += context_.cache->length();
  }

  void make_outputs(const Node& node, int overwritten_input) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i == 0 && overwritten_input >= 0 && !is_deferred(frame_.values[node.inputs[overwritten_input]])) {
        call_.outputs[0] = Tensor(frame_.values[node.inputs[overwritten_input]]).release();
        continue;
      }
      const GraphValue& value = block_.block.values[node.outputs[i]];
      call_.outputs[i] =
          Tensor::empty(context_.local_shape(value), dtype_of(value, context_.options->compute), context_.device())
              .release();
    }
  }

  bool is_loss(const Node& node) const {
    return node.outputs.size() == 1 && block_.block.values[node.outputs[0]].dims.empty();
  }

  void forward_backward(size_t n) {
    const Node& node = block_.nodes[n];
    const Tensor scale = loss_gradient();
    call_.grad_outputs[0] = scale.handle();
    lend_param_gradients(node);
    run(node, node.provider->table->forward_backward, "forward_backward");
    mark_written(node);
    adopt_input_gradients(node);
    frame_.done[n] = 1;
  }

  Tensor loss_gradient() const {
    Tensor scale = Tensor::empty({}, Dtype::f32, context_.device());
    scale.fill(context_.loss_scale);
    return scale;
  }

  void forward_collective(const Node& node) {
    const Op& op = block_.block.ops[node.ops[0]];
    const Tensor& input = frame_.values[node.inputs[0]];
    const GraphValue& value = block_.block.values[node.outputs[0]];
    if (op.id == kShift) {
      shifts_[node.outputs[0]] = shift(op, input, false);
      return;
    }
    Tensor output = op.id == "comm.copy" ? input
                    : op.id == kTake     ? taken(op, input, context_.local_shape(value)).contiguous()
                    : op.id == kChunk    ? read_chunk(input, chunk_of(op, node.outputs[0]))
                    : op.id == kPut      ? put(node)
                    : op.id == kSum      ? sum(node)
                                         : collective(call_of(op), input, node.outputs[0]);
    if (output.sizes() != context_.local_shape(value))  // kernels write where the program says
      throw internal_error(op.id + " of '" + value.name + "' gives " + text(Shape(output.sizes())) + ", expected " +
                           text(Shape(context_.local_shape(value))));
    frame_.values[node.outputs[0]] = std::move(output);
  }

  // The part of `whole` that comm.take gives.
  static Tensor taken(const Op& op, const Tensor& whole, const std::vector<int64_t>& sizes) {
    const auto dim = static_cast<int>(op.attr_int("dim", 0));
    return whole.narrow(dim, op.attr_int("first", 0), sizes[static_cast<size_t>(dim)]);
  }

  void backward_collective(const Node& node) {
    const Op& op = block_.block.ops[node.ops[0]];
    Tensor& gradient = frame_.gradients[node.outputs[0]];
    if (!gradient || !node.input_needs_grad[0]) return;
    if (op.id == kLogSumExp)
      return accumulate(node.inputs[0],
                        log_sum_gradient(gradient, frame_.values[node.inputs[0]], frame_.values[node.outputs[0]]));
    if (op.id == kTake) {
      const GraphValue& value = block_.block.values[node.inputs[0]];
      Tensor whole = Tensor::empty(context_.local_shape(value), gradient.dtype(), context_.device());
      whole.zero();
      taken(op, whole, gradient.sizes()).copy_from(gradient);
      return accumulate(node.inputs[0], std::move(whole));
    }
    if (op.id == kShift) {
      // The rest of the input's gradient is there: it was computed while this was on its way.
      if (auto sent = shifts_.extract(node.outputs[0])) accumulate(node.inputs[0], sent.mapped()->take().at(0));
      return;
    }
    if (op.id == kChunk) return add_gradient_of_chunk(node);
    if (op.id == kPut || op.id == kSum) {
      if (node.inputs[1] != kAbsent) accumulate(node.inputs[1], Tensor(gradient));
      accumulate(node.inputs[0], op.id == kSum ? Tensor(gradient) : read_chunk(gradient, chunk_of(op, node.inputs[0])));
      return;
    }
    const std::string dual = dual_of(op.id);
    if (dual == "comm.copy") return accumulate(node.inputs[0], std::move(gradient));
    CollectiveCall call = call_of(op);
    call.op = dual;
    if (dual == kAllToAll) std::swap(call.dim, call.to);
    accumulate(node.inputs[0], collective(call, gradient, node.inputs[0]));
  }

  // ---- values around the ranks of an axis, in chunks

  std::unique_ptr<Shift> shift(const Op& op, const Tensor& sent, bool back) {
    CHASSIS_CHECK(context_.collectives, "the program has a ring, but the executor was given no collectives");
    return context_.collectives->shift(std::get<std::string>(*op.attr("axis")), {sent.contiguous()}, back);
  }

  void wait_for(ValueId v) {
    if (auto sent = shifts_.extract(v)) frame_.values[v] = std::move(sent.mapped()->take().at(0));
  }

  // The gradient of what a shift gave is complete.
  void send_back(const Node& node) {
    const Tensor& gradient = frame_.gradients[node.outputs[0]];
    if (!gradient || !node.input_needs_grad[0]) return;
    shifts_[node.outputs[0]] = shift(block_.block.ops[node.ops[0]], gradient, true);
  }

  // `id`: the value that has only the chunk.
  Chunk chunk_of(const Op& op, ValueId id) const {
    const auto dim = static_cast<int>(op.attr_int("dim", 0));
    return {dim, op.attr_int("part", 0), context_.local_shape(block_.block.values[id])[static_cast<size_t>(dim)]};
  }

  Tensor put(const Node& node) {
    const Tensor& chunk = frame_.values[node.inputs[0]];
    Tensor whole = node.inputs[1] != kAbsent ? frame_.values[node.inputs[1]] : Tensor();
    if (!whole)
      whole =
          Tensor::empty(context_.local_shape(block_.block.values[node.outputs[0]]), chunk.dtype(), context_.device());
    write_chunk(whole, chunk_of(block_.block.ops[node.ops[0]], node.inputs[0]), chunk);
    return whole;
  }

  Tensor sum(const Node& node) {
    Tensor own = frame_.values[node.inputs[1]];
    own.add(frame_.values[node.inputs[0]]);
    return own;
  }

  void add_gradient_of_chunk(const Node& node) {
    Tensor& whole = frame_.gradients[node.inputs[0]];
    const Tensor& gradient = frame_.gradients[node.outputs[0]];
    if (!whole) {
      whole =
          Tensor::empty(context_.local_shape(block_.block.values[node.inputs[0]]), gradient.dtype(), context_.device());
      whole.zero();
    } else if (!owns_gradient(node.inputs[0]) || is_deferred(whole)) {
      whole = whole.clone();
    }
    add_to_chunk(whole, chunk_of(block_.block.ops[node.ops[0]], node.outputs[0]), gradient);
  }

  static CollectiveCall call_of(const Op& op) {
    return {op.id,
            std::get<std::string>(*op.attr("axis")),
            static_cast<int>(op.attr_int("dim", 0)),
            static_cast<int>(op.attr_int("to", 0)),
            static_cast<double>(op.attr_int("pad", 0)),
            op.attr_int(kZigzag, 0) != 0};
  }

  Tensor collective(const CollectiveCall& call, const Tensor& input) {
    CHASSIS_CHECK(context_.collectives, "the program has collectives, but the executor was given none");
    return context_.collectives->run(call, input);
  }

  // `value`: whose sizes the result has. What is gathered along an unevenly divided dim ends in padding, which goes.
  Tensor collective(const CollectiveCall& call, const Tensor& input, ValueId value) {
    Tensor result = collective(call, input);
    if (call.op != "comm.all_gather" && call.op != kAllToAll) return result;
    const int64_t size = context_.local_shape(block_.block.values[value])[static_cast<size_t>(call.dim)];
    return result.size(call.dim) <= size ? result : result.narrow(call.dim, 0, size).contiguous();
  }

  // The first position of a node that has some of them, if an axis divides these.
  int64_t query_offset(const Node& node) const {
    const int64_t part = block_.block.ops[node.ops[0]].attr_int(kQueryPart, 0);
    return part == 0 ? 0 : part * context_.local_shape(block_.block.values[node.outputs[0]])[1];
  }

  void backward_node(size_t n) {
    const Node& node = block_.nodes[n];
    if (ring_op(node) != nullptr) return backward_ring(n);
    if (node.num_calls > 1) return backward_pieces(n);
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, false);
    call_.raw.flags = CHASSIS_CALL_TRAINING;
    call_.raw.query_offset = query_offset(node);
    Tensor loss_scale;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (is_loss(node)) loss_scale = loss_gradient(), call_.grad_outputs[i] = loss_scale.handle();
      else call_.grad_outputs[i] = frame_.gradients[node.outputs[i]].handle();
      if (node.keeps_output(i)) call_.outputs[i] = handle(node.outputs[i]);
    }
    if (std::all_of(call_.grad_outputs.begin(), call_.grad_outputs.end(), [](auto h) { return h == nullptr; })) return;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.keeps_input(i)) call_.inputs[i] = handle(node.inputs[i]);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, parameter(node.params[i]));
    for (size_t i = 0; i < frame_.saved[n].size(); ++i) call_.saved[i] = frame_.saved[n][i].handle();
    const bool defers = defers_params_ && !node.flag(CHASSIS_KERNEL_COMPOSED) && trains_params(node);
    if (!defers) lend_param_gradients(node);

    if (node.flag(CHASSIS_KERNEL_COMPOSED) && !context_.rehearsal) {
      run_composed(node);
    } else {
      if (std::count(node.input_needs_grad.begin(), node.input_needs_grad.end(), 1)) {
        lend_input_gradients(node);
        run(node, node.provider->table->backward_inputs, "backward_inputs");
      }
      if (std::any_of(call_.grad_params.begin(), call_.grad_params.end(), [](auto h) { return h != nullptr; }))
        run(node, node.provider->table->backward_params, "backward_params");
    }
    if (defers)
      frame_.deferred.push_back(
          {n, shared(call_.inputs), shared(call_.outputs), shared(call_.saved), shared(call_.grad_outputs)});
    mark_written(node);
    adopt_input_gradients(node);
  }

  void run_composed(const Node& node) {
    describe_call(node);
    const PluginCall call(*node.site, "backward by autograd", unit());
    run_composed_backward(node, call_.raw);
  }

  bool trains_params(const Node& node) const {
    return std::any_of(node.params.begin(), node.params.end(), [&](SlotId p) { return block_.slot_trainable[p]; });
  }

  static std::vector<Tensor> shared(const std::vector<chassis_tensor_t>& handles) {
    std::vector<Tensor> out;
    for (chassis_tensor_t handle : handles) out.push_back(handle ? Tensor::share(handle) : Tensor());
    return out;
  }

  static void lend(const std::vector<Tensor>& tensors, std::vector<chassis_tensor_t>& handles) {
    for (size_t i = 0; i < tensors.size(); ++i) handles[i] = tensors[i] ? tensors[i].handle() : nullptr;
  }

  void run_deferred(const DeferredParams& deferred) {
    const Node& node = block_.nodes[deferred.node];
    const NodeRun here(context_, node, "backward of parameters");
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, false);
    call_.raw.flags = CHASSIS_CALL_TRAINING;
    lend(deferred.inputs, call_.inputs);
    lend(deferred.outputs, call_.outputs);
    lend(deferred.saved, call_.saved);
    lend(deferred.grad_outputs, call_.grad_outputs);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, parameter(node.params[i]));
    lend_param_gradients(node);
    // A rehearsal counted the workspace of this node's backward in the first part.
    if (!context_.rehearsal) run(node, node.provider->table->backward_params, "backward_params");
    mark_written(node);
  }

  // A deferred node will read it, so nothing may write to its memory. Empty tensors are not deferred.
  bool is_deferred(const Tensor& tensor) const {
    const auto shares = [&](const Tensor& kept) { return kept && kept.shares_storage_with(tensor); };
    const auto any_shares = [&](const std::vector<Tensor>& kept) {
      return std::any_of(kept.begin(), kept.end(), shares);
    };
    return std::any_of(frame_.deferred.begin(), frame_.deferred.end(), [&](const DeferredParams& d) {
      return any_shares(d.inputs) || any_shares(d.outputs) || any_shares(d.saved) || any_shares(d.grad_outputs);
    });
  }

  // A provider that can add gets the gradient that other readers of the input have summed so far.
  void lend_input_gradients(const Node& node) {
    if (!node.flag(CHASSIS_KERNEL_ADDS_GRAD_INPUTS)) return;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.input_needs_grad[i]) continue;
      if (std::count(node.inputs.begin(), node.inputs.begin() + static_cast<std::ptrdiff_t>(i), node.inputs[i]))
        continue;
      Tensor& gradient = frame_.gradients[node.inputs[i]];
      if (!gradient || !owns_gradient(node.inputs[i])) continue;
      if (is_deferred(gradient)) gradient = gradient.clone();
      call_.grad_inputs[i] = gradient.release();
    }
  }

  void adopt_input_gradients(const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!call_.grad_inputs[i]) {
        if (node.input_needs_grad[i] && node.provider) count_missing_gradient(node, i);
        continue;
      }
      check_gradient(call_, block_, context_, node, i);
      Tensor gradient = KernelCall::take(call_.grad_inputs[i]);
      if (node.has_logits) retag_memory(gradient, category_of(node.inputs[i]));
      if (node.input_needs_grad[i]) accumulate(node.inputs[i], std::move(gradient));
    }
  }

  // The ABI lets a provider leave out a zero gradient. Counted, so that the user sees which provider does it.
  static void count_missing_gradient(const Node& node, size_t i) {
    counted_warning(provider_on(node) + ": gradients left out",
                    provider_on(node) + " returned no gradient of input " + std::to_string(i) + "; it counts as zero");
  }

  // A gradient may share its memory with the gradient of an output (add passes its own through), so a shared sum is
  // cloned before anything is added to it.
  void accumulate(ValueId value, Tensor gradient) {
    if (!gradient) return;
    Tensor& sum = frame_.gradients[value];
    if (!sum) {
      sum = std::move(gradient);
      return;
    }
    if (!owns_gradient(value) || is_deferred(sum)) sum = sum.clone();
    sum.add(gradient);
  }

  // No gradient of another value shares its storage.
  bool owns_gradient(ValueId value) const {
    const Tensor& gradient = frame_.gradients[value];
    for (ValueId v = 0; v < frame_.gradients.size(); ++v)
      if (v != value && frame_.gradients[v] && frame_.gradients[v].shares_storage_with(gradient)) return false;
    return true;
  }

  void lend_param_gradients(const Node& node) {
    for (size_t i = 0; i < node.params.size(); ++i) {
      Parameter& p = parameter(node.params[i]);
      if (!block_.slot_trainable[node.params[i]]) continue;
      if (!p.gradient) {
        MemoryTag tag(MemoryCategory::kGradients);
        p.gradient = Tensor::empty(p.value.sizes(), Dtype::f32, context_.device());
      }
      call_.grad_params[i] = p.gradient.handle();
      call_.beta[i] = p.gradient_written ? 1.0f : 0.0f;
    }
  }

  void mark_written(const Node& node) {
    for (size_t i = 0; i < node.params.size(); ++i)
      if (call_.grad_params[i]) parameter(node.params[i]).gradient_written = true;
  }

  int64_t unit() const { return static_cast<int64_t>(context_.unit); }
  Parameter& parameter(SlotId slot) const { return *(*context_.parameters)[slot]; }
  MemoryCategory category_of(ValueId value) const {
    return context_.program->is_logits(block_.block.values[value]) ? MemoryCategory::kLogits
                                                                   : MemoryCategory::kActivations;
  }

  // Of the first op with random bits; the name of an op, unlike its index, does not depend on the strategies.
  uint64_t random_key(const Node& node) const {
    for (uint32_t op : node.ops)
      if (has_random_bits(block_.block.ops[op]))
        return hash64(block_.block.ops[op].name + "#" + std::to_string(context_.unit), context_.random.key);
    return 0;
  }

  using Kernel = chassis_status_t* (*)(chassis_instance*, void*, chassis_call_t*);
  void run(const Node& node, Kernel kernel, const char* phase) { run(node, kernel, phase, context_); }

  // What a kernel is told beside its tensors.
  void describe_call(const Node& node) {
    call_.raw.stream = current_stream(context_.device());
    call_.raw.random_key = random_key(node);
    call_.raw.first_row = context_.random.first_row;
  }

  // `context`: of the sizes of this call.
  void run(const Node& node, Kernel kernel, const char* phase, const RunContext& context) {
    const auto* table = node.provider->table;
    if (!context_.rehearsal) {
      describe_call(node);
      const Tensor scratch =
          workspace(node, kernel == table->forward ? node.infer.workspace_forward_bytes
                          : kernel == table->forward_backward
                              ? node.infer.workspace_forward_bytes + node.infer.workspace_backward_bytes
                              : node.infer.workspace_backward_bytes);
      call_.raw.workspace = scratch ? scratch.data() : nullptr;
      call_.raw.workspace_bytes = scratch ? scratch.num_bytes() : 0;
      const PluginCall call(*node.site, phase, unit());
      call_.remember_given();
      chassis_status_t* const status = kernel(node.provider->self, node.kernel.get(), &call_.raw);
      const std::string invalid = call_.drop_invalid(node.provider->tracked);
      if (status) throw_if_failed(status, provider_on(node));
      if (!invalid.empty()) throw plugin_error(provider_on(node) + own_call_phase() + ": " + invalid);
      return;
    }
    const bool is_forward = kernel == table->forward;
    if (is_forward || (kernel != nullptr && kernel == table->forward_backward))
      rehearse_forward(block_, node, context, call_.raw);
    if (!is_forward) rehearse_backward(block_, node, context, call_.raw);
  }

  // As many bytes as infer asked for at the planned sizes, scaled up for more rows or positions.
  Tensor workspace(const Node& node, uint64_t bytes) const {
    if (!node.flag(CHASSIS_KERNEL_HOST_WORKSPACE) || bytes == 0) return {};
    const int64_t planned = context_.options->batch * context_.options->time, now = context_.batch * context_.time;
    const int64_t times = std::max<int64_t>(1, (now + planned - 1) / planned);
    const MemoryTag tag(MemoryCategory::kWorkspace);
    return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(bytes) * times}, Dtype::u8, context_.device());
  }

  const ResolvedBlock& block_;
  const RunContext& context_;
  Frame& frame_;
  KernelCall call_;
  bool defers_params_ = false;
  std::map<ValueId, std::unique_ptr<Shift>> shifts_;  // on their way: the value, or in backward its gradient
  int64_t num_positions_ = 0;  // of the rows of a ring
};

}  // namespace

uint64_t Frame::num_bytes() const {
  uint64_t bytes = 0;
  for (const Tensor& t : values) bytes += t ? t.num_bytes() : 0;
  for (const auto& node : saved)
    for (const Tensor& t : node) bytes += t.num_bytes();
  return bytes;
}

std::map<std::string, Tensor> run_forward(const ResolvedBlock& block, const RunContext& context,
                                          const std::map<std::string, Tensor>& inputs, const Fields& fields,
                                          bool training, Frame& frame) {
  return BlockRun(block, context, frame).forward(inputs, fields, training);
}

std::map<std::string, Tensor> run_backward(const ResolvedBlock& block, const RunContext& context,
                                           std::map<std::string, Tensor> output_gradients, Frame& frame) {
  return BlockRun(block, context, frame).backward(std::move(output_gradients), false);
}

std::map<std::string, Tensor> run_backward_inputs(const ResolvedBlock& block, const RunContext& context,
                                                  std::map<std::string, Tensor> output_gradients, Frame& frame) {
  return BlockRun(block, context, frame).backward(std::move(output_gradients), true);
}

void run_backward_params(const ResolvedBlock& block, const RunContext& context, Frame& frame) {
  BlockRun(block, context, frame).backward_params();
}

}  // namespace chassis
