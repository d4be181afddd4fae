// Walks the nodes of a block, forward and back, and passes tensors from one to the next.
#include "host/execute/block_run.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/liveness.hpp"
#include "host/execute/collective_nodes.hpp"
#include "host/execute/kernel_call.hpp"
#include "host/execute/kernel_runner.hpp"
#include "host/execute/piece_nodes.hpp"
#include "host/execute/ring_nodes.hpp"
#include "host/graph/op_table.hpp"
#include "host/service/memory.hpp"

namespace chassis {
namespace {

// Marks the run of a node: records where the step is, and a span in the trace.
class NodeRun {
 public:
  NodeRun(const RunContext& context, const Node& node, const char* phase)
      : span_(context.trace, TraceTrack::kNodes, node.name, phase, context.microbatch,
              static_cast<int64_t>(context.unit), node.provider ? std::string_view(node.provider->name) : "") {
    context.backend->enter_node(node.name);
  }

 private:
  const ScopedSpan span_;
};

class BlockRun : NodeKind {
 public:
  explicit BlockRun(KernelRunner& runner) : NodeKind(runner) {}

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
      if (node.is_left_to_cache && !context_.caches.empty()) continue;
      const NodeRun here(context_, node, "forward");
      for (ValueId v : node.inputs) collectives_.wait_for(v);
      for (ValueId v : node.cached) collectives_.wait_for(v);
      if (const auto made = frame_.choices.find(n); made != frame_.choices.end())
        frame_.values[node.outputs[0]] = made->second;
      else if (node.provider)
        forward_node(n, training, false);
      else
        collectives_.forward(node);
      if (is_choice(block_.block, node)) frame_.choices[n] = frame_.values[node.outputs[0]];
      for (ValueId v : node.dead_after_forward) frame_.values[v].reset();
    }
    std::map<std::string, Tensor> outputs;
    for (const auto& [name, value] : block_.block.outputs) outputs[name] = frame_.values[value];
    for (const auto& [name, value] : block_.block.outputs) {
      const bool kept = std::find(block_.kept.begin(), block_.kept.end(), value) != block_.kept.end();
      if (!kept || !training) frame_.values[value].reset();
    }
    return outputs;
  }

  // `defers_params` leaves the gradients of parameters to backward_params().
  std::map<std::string, Tensor> backward(std::map<std::string, Tensor> output_gradients, bool defers_params) {
    MemoryTag tag(MemoryCategory::kActivations);
    defers_params_ = defers_params;
    for (auto& [name, gradient] : output_gradients)
      if (auto found = block_.block.outputs.find(name); found != block_.block.outputs.end())
        runner_.accumulate(found->second, std::move(gradient));
    output_gradients.clear();
    for (size_t n = block_.nodes.size(); n-- > 0;) {
      const Node& node = block_.nodes[n];
      for (size_t other : node.recomputed_before_backward) run_again(other);
      const NodeRun here(context_, node, "backward");
      if (node.has_backward && !frame_.done[n]) {
        if (node.provider)
          backward_node(n);
        else
          collectives_.backward(node);
      }
      for (size_t shift : node.shifts_after_backward) collectives_.send_back(block_.nodes[shift]);
      frame_.saved[n].clear();
      for (ValueId v : node.outputs) frame_.gradients[v].reset();
      for (ValueId v : node.dead_after_backward) frame_.values[v].reset();
    }
    std::map<std::string, Tensor> gradients;
    for (const auto& [name, value] : block_.block.inputs)
      if (frame_.gradients[value]) {
        Tensor& gradient = gradients[name] = std::move(frame_.gradients[value]);
        if (runner_.is_deferred(gradient)) gradient = gradient.clone();  // the receiver may add to it
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
  // `again`: backward runs the node's forward again. Tensors saved for backward come from its last run.
  void forward_node(size_t n, bool training, bool again) {
    const Node& node = block_.nodes[n];
    const bool saves = training && node.has_backward && node.is_recomputed == again;
    if (context_.caches.size() > 1 && runner_.first_op(node).spec().is_attention()) return forward_rows(n);
    if (ring_.has(node)) return ring_.forward(n, saves);
    if (node.num_calls > 1) return pieces_.forward(n, saves, again ? "forward again" : "forward");
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, true);
    call_.raw.flags = saves ? CHASSIS_CALL_TRAINING : 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) call_.inputs[i] = runner_.handle(node.inputs[i]);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, runner_.parameter(node.params[i]));
    call_.raw.query_offset = query_offset(node);
    Tensor cached[2];
    if (context_.cache() && runner_.first_op(node).spec().is_attention()) read_cache(node, cached);
    if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS))
      make_outputs(node, again ? node.overwritten_by_recompute : node.overwritten_input);
    const bool with_gradients =
        training && node.has_backward && node.flag(CHASSIS_KERNEL_FORWARD_BACKWARD) && is_loss(node);
    if (with_gradients)
      forward_backward(n);
    else
      backend_.forward(runner_, node, again ? "forward again" : "forward", context_);
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

  // Attention of rows that have caches: their lengths differ, so each row is a call of its own. All other nodes compute
  // the rows together.
  void forward_rows(size_t n) {
    const Node& node = block_.nodes[n];
    std::vector<Tensor> outputs;
    for (const ValueId v : node.outputs) outputs.push_back(runner_.empty(v));
    const auto num_rows = static_cast<int64_t>(context_.caches.size());
    for (int64_t row = 0; row < num_rows; ++row) {
      RunContext context = context_;
      context.caches = context_.caches.subspan(static_cast<size_t>(row), 1);
      context.sizes.batch = 1;
      Frame frame;
      frame.values.resize(frame_.values.size());
      for (const auto* values : {&node.inputs, &node.cached})
        for (const ValueId v : *values)
          if (v != kAbsent && frame_.values[v]) frame.values[v] = frame_.values[v].narrow(0, row, 1);
      KernelRunner runner(block_, context, frame);
      BlockRun(runner).forward_node(n, false, false);
      for (size_t i = 0; i < outputs.size(); ++i) outputs[i].narrow(0, row, 1).copy_from(frame.values[node.outputs[i]]);
    }
    for (size_t i = 0; i < outputs.size(); ++i) frame_.values[node.outputs[i]] = std::move(outputs[i]);
  }

  void run_again(size_t n) {
    const Node& node = block_.nodes[n];
    const NodeRun here(context_, node, "forward again");
    if (node.provider)
      forward_node(n, true, true);
    else
      collectives_.forward(node);
    for (ValueId v : node.dead_after_recompute) frame_.values[v].reset();
  }

  // Keys cover all positions so far, queries only the new ones. Document ids are not needed: each row is one document.
  void read_cache(const Node& node, Tensor (&cached)[2]) {
    if (!node.cached.empty()) compute_from_cache(node, cached);
    for (uint32_t i = 0; i < 2; ++i) {
      if (node.cached.empty()) cached[i] = appended(node.inputs[1 + i]);
      call_.inputs[1 + i] = cached[i].handle();
    }
    call_.raw.query_offset += context_.cache()->length();
  }
  Tensor appended(ValueId v) const { return context_.cache()->append(context_.unit, v, frame_.values[v]); }

  // The nodes run in a frame of their own, on all positions so far. None takes over the memory of an input, which may
  // be that of the cache.
  void compute_from_cache(const Node& node, Tensor (&cached)[2]) {
    RunContext context = context_;
    context.sizes.time += context_.cache()->length();
    Frame frame;
    frame.values.resize(frame_.values.size());
    for (const ValueId v : node.cached) frame.values[v] = appended(v);
    KernelRunner runner(block_, context, frame);
    BlockRun run(runner);
    for (const size_t n : node.computed_from_cache) {
      const NodeRun here(context, block_.nodes[n], "forward again");
      run.forward_node(n, false, true);
      for (const ValueId v : block_.nodes[n].dead_after_forward) frame.values[v].reset();
    }
    context_.backend->enter_node(node.name);
    for (uint32_t i = 0; i < 2; ++i) cached[i] = frame.values[node.inputs[1 + i]];
  }

  void make_outputs(const Node& node, int overwritten_input) {
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (i == 0 && overwritten_input >= 0 && !runner_.is_deferred(frame_.values[node.inputs[overwritten_input]])) {
        call_.outputs[0] = Tensor(frame_.values[node.inputs[overwritten_input]]).release();
        continue;
      }
      call_.outputs[i] = runner_.empty(node.outputs[i]).release();
    }
  }

  bool is_loss(const Node& node) const { return node.outputs.size() == 1 && is_loss(node.outputs[0]); }
  // True for the loss, or an addend of it: both have the same gradient.
  bool is_loss(ValueId value) const {
    if (!block_.block.values[value].dims.empty()) return false;
    if (const auto loss = block_.block.outputs.find("loss");
        loss != block_.block.outputs.end() && loss->second == value)
      return true;
    for (const auto& [name, output] : block_.block.outputs)
      if (output == value) return false;  // its gradient comes from the next block
    const Op* reader = nullptr;
    for (const Op& op : block_.block.ops)
      if (std::ranges::find(op.inputs, value) != op.inputs.end()) {
        if (reader != nullptr) return false;
        reader = &op;
      }
    return reader != nullptr && (reader->spec().shares_grad || reader->comm() == CommOp::kAllReduce) &&
           is_loss(reader->outputs[0]);
  }

  void forward_backward(size_t n) {
    const Node& node = block_.nodes[n];
    const Tensor scale = loss_gradient();
    call_.grad_outputs[0] = scale.handle();
    lend_param_gradients(node);
    backend_.forward_backward(runner_, node);
    mark_written(node);
    adopt_input_gradients(node);
    frame_.done[n] = 1;
  }

  Tensor loss_gradient() const {
    Tensor scale = Tensor::empty({}, Dtype::f32, context_.device());
    scale.fill(context_.loss_scale);
    return scale;
  }

  // The first position that the node computes, if an axis divides positions; else 0.
  int64_t query_offset(const Node& node) const {
    const int64_t part = runner_.first_op(node).attr_int(kQueryPart, 0);
    return part == 0 ? 0 : part * runner_.local_shape(node.outputs[0])[1];
  }

  void backward_node(size_t n) {
    const Node& node = block_.nodes[n];
    if (ring_.has(node)) return ring_.backward(n);
    if (node.num_calls > 1) return pieces_.backward(n);
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, false);
    call_.raw.flags = CHASSIS_CALL_TRAINING;
    call_.raw.query_offset = query_offset(node);
    Tensor loss_scale;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (is_loss(node))
        loss_scale = loss_gradient(), call_.grad_outputs[i] = loss_scale.handle();
      else
        call_.grad_outputs[i] = frame_.gradients[node.outputs[i]].handle();
      if (node.keeps_output(i)) call_.outputs[i] = runner_.handle(node.outputs[i]);
    }
    if (std::all_of(call_.grad_outputs.begin(), call_.grad_outputs.end(), [](auto h) { return h == nullptr; })) return;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.keeps_input(i)) call_.inputs[i] = runner_.handle(node.inputs[i]);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, runner_.parameter(node.params[i]));
    for (size_t i = 0; i < frame_.saved[n].size(); ++i) call_.saved[i] = frame_.saved[n][i].handle();
    const bool defers = defers_params_ && !node.flag(CHASSIS_KERNEL_COMPOSED) && trains_params(node);
    if (!defers) lend_param_gradients(node);

    if (!backend_.backward_by_autograd(runner_, node)) {
      if (std::count(node.input_needs_grad.begin(), node.input_needs_grad.end(), 1)) {
        lend_input_gradients(node);
        backend_.backward_inputs(runner_, node);
      }
      if (std::any_of(call_.grad_params.begin(), call_.grad_params.end(), [](auto h) { return h != nullptr; }))
        backend_.backward_params(runner_, node);
    }
    if (defers)
      frame_.deferred.push_back(
          {n, shared(call_.inputs), shared(call_.outputs), shared(call_.saved), shared(call_.grad_outputs)});
    mark_written(node);
    adopt_input_gradients(node);
  }

  bool trains_params(const Node& node) const {
    return std::any_of(node.params.begin(), node.params.end(), [&](SlotId p) { return block_.slot_trainable[p]; });
  }

  static std::vector<Tensor> shared(const std::vector<chassis_tensor_t>& handles) {
    std::vector<Tensor> out;
    for (chassis_tensor_t handle : handles) out.push_back(handle ? Tensor::share(handle) : Tensor());
    return out;
  }

  void run_deferred(const DeferredParams& deferred) {
    const Node& node = block_.nodes[deferred.node];
    const NodeRun here(context_, node, "backward of parameters");
    const MemoryTag tag(node.has_logits ? MemoryCategory::kLogits : MemoryCategory::kActivations);
    call_.reset(node, false);
    call_.raw.flags = CHASSIS_CALL_TRAINING;
    KernelCall::lend(deferred.inputs, call_.inputs);
    KernelCall::lend(deferred.outputs, call_.outputs);
    KernelCall::lend(deferred.saved, call_.saved);
    KernelCall::lend(deferred.grad_outputs, call_.grad_outputs);
    for (size_t i = 0; i < node.params.size(); ++i) call_.lend_param(i, runner_.parameter(node.params[i]));
    lend_param_gradients(node);
    backend_.deferred_backward_params(runner_, node);
    mark_written(node);
  }

  // A provider that can add to input gradients gets the gradient that other readers of the input have summed so far.
  void lend_input_gradients(const Node& node) {
    if (!node.flag(CHASSIS_KERNEL_ADDS_GRAD_INPUTS)) return;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.input_needs_grad[i]) continue;
      if (std::count(node.inputs.begin(), node.inputs.begin() + static_cast<std::ptrdiff_t>(i), node.inputs[i]))
        continue;
      Tensor& gradient = frame_.gradients[node.inputs[i]];
      if (!gradient || !runner_.owns_gradient(node.inputs[i])) continue;
      if (runner_.is_deferred(gradient)) gradient = gradient.clone();
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
      if (node.input_needs_grad[i]) runner_.accumulate(node.inputs[i], std::move(gradient));
    }
  }

  void lend_param_gradients(const Node& node) {
    for (size_t i = 0; i < node.params.size(); ++i) {
      Parameter& p = runner_.parameter(node.params[i]);
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
      if (call_.grad_params[i]) runner_.parameter(node.params[i]).gradient_written = true;
  }

  MemoryCategory category_of(ValueId value) const {
    return context_.program->is_logits(block_.block.values[value]) ? MemoryCategory::kLogits
                                                                   : MemoryCategory::kActivations;
  }

  RingNodes ring_{runner_};
  PieceNodes pieces_{runner_};
  CollectiveNodes collectives_{runner_};
  bool defers_params_ = false;
};

}  // namespace

std::map<std::string, Tensor> run_forward(const ResolvedBlock& block, const RunContext& context,
                                          const std::map<std::string, Tensor>& inputs, const Fields& fields,
                                          bool training, Frame& frame) {
  KernelRunner runner(block, context, frame);
  return BlockRun(runner).forward(inputs, fields, training);
}

std::map<std::string, Tensor> run_backward(const ResolvedBlock& block, const RunContext& context,
                                           std::map<std::string, Tensor> output_gradients, Frame& frame) {
  KernelRunner runner(block, context, frame);
  return BlockRun(runner).backward(std::move(output_gradients), false);
}

std::map<std::string, Tensor> run_backward_inputs(const ResolvedBlock& block, const RunContext& context,
                                                  std::map<std::string, Tensor> output_gradients, Frame& frame) {
  KernelRunner runner(block, context, frame);
  return BlockRun(runner).backward(std::move(output_gradients), true);
}

void run_backward_params(const ResolvedBlock& block, const RunContext& context, Frame& frame) {
  KernelRunner runner(block, context, frame);
  BlockRun(runner).backward_params();
}

}  // namespace chassis
