// With a key-value cache no rank waits for another: the cache has the keys of all.
#include "host/execute/ring_nodes.hpp"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "host/base/error.hpp"
#include "host/execute/collective_nodes.hpp"
#include "host/state/shape.hpp"

namespace chassis {

Ring RingNodes::ring_of(const Op& op) const {
  Ring ring;
  ring.axis = std::get<std::string>(*op.attr(kRing));
  const LayoutAxis& axis = context_.layout->axis(ring.axis);
  ring.num_ranks = axis.size, ring.rank = axis.coordinate;
  ring.collectives = context_.collectives;
  ring.skips_later_keys = op.attr_int("causal", 0) != 0 && op.attr_int("prefix", 0) == 0;
  return ring;
}

void RingNodes::lend(const Node& node, bool forward, const Tensor& q, const Tensor& k, const Tensor& v,
                     AttentionOffsets offsets) {
  call_.reset(node, forward);
  call_.raw.flags = CHASSIS_CALL_TRAINING;
  call_.inputs[0] = q.handle(), call_.inputs[1] = k.handle(), call_.inputs[2] = v.handle();
  for (size_t i = 3; i < node.inputs.size(); ++i) call_.inputs[i] = runner_.handle(node.inputs[i]);
  call_.raw.query_offset = offsets.query;
  call_.raw.key_offset = offsets.key;
  call_.raw.num_positions = num_positions_;
}

PartialAttention RingNodes::attend(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                                   AttentionOffsets offsets) {
  const std::vector<int64_t> sizes{q.size(0), q.size(1), q.size(2), v.size(3)},
      log_sum_sizes{q.size(0), q.size(2), q.size(1)};
  Tensor output = Tensor::empty(sizes, q.dtype(), context_.device());
  if (context_.rehearsal) {
    runner_.workspace(node, node.infer.workspace_forward_bytes);
    return {std::move(output), Tensor::empty(log_sum_sizes, Dtype::f32, context_.device())};
  }
  lend(node, true, q, k, v, offsets);
  if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS)) call_.outputs[0] = output.release();
  runner_.run(node, node.provider->table->forward, "forward");
  if (call_.outputs[0] == nullptr || call_.saved[0] == nullptr)
    throw plugin_error(provider_on(node) + ": attention with key_part returned no output or no log sum");
  PartialAttention out{KernelCall::take(call_.outputs[0]), KernelCall::take(call_.saved[0])};
  if (out.output.sizes() != sizes || out.log_sum.sizes() != log_sum_sizes || out.log_sum.dtype() != Dtype::f32)
    throw plugin_error(provider_on(node) + ": attention with key_part returned an output " +
                       text(Shape(out.output.sizes())) + " and a log sum " + text(Shape(out.log_sum.sizes())) +
                       " for queries " + text(Shape(q.sizes())));
  return out;
}

std::array<Tensor, 3> RingNodes::attend_backward(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const PartialAttention& whole, const Tensor& gradient,
                                                 AttentionOffsets offsets) {
  if (context_.rehearsal) {
    runner_.workspace(node, node.infer.workspace_backward_bytes);
    std::array<Tensor, 3> out;
    for (size_t i = 0; const Tensor* x : {&q, &k, &v}) out[i++] = Tensor::empty(x->sizes(), x->dtype(), x->device());
    return out;
  }
  lend(node, false, q, k, v, offsets);
  call_.outputs[0] = whole.output.handle();
  call_.saved[0] = whole.log_sum.handle();
  call_.grad_outputs[0] = gradient.handle();
  runner_.run(node, node.provider->table->backward_inputs, "backward_inputs");
  std::array<Tensor, 3> out;
  for (size_t i = 0; i < out.size(); ++i)
    if (call_.grad_inputs[i]) out[i] = KernelCall::take(call_.grad_inputs[i]);
  return out;
}

void RingNodes::forward(size_t n, bool saves) {
  const Node& node = block_.nodes[n];
  const Op& op = runner_.first_op(node);
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
    const Tensor all = run_collective(context_, {CommOp::kAllGather, ring.axis, 1, 0, 0.0, true}, input(1 + i));
    const Tensor row = all.size(1) > context_.time ? all.narrow(1, 0, context_.time).contiguous() : all;
    cached[i] = context_.cache->append(context_.unit, node.ops[0], i == 1, row).contiguous();
  }
  num_positions_ += context_.cache->length();
  output = attend_pieces(ring, input(0), cached[0], cached[1], context_.cache->length(), attend);
}

void RingNodes::backward(size_t n) {
  const Node& node = block_.nodes[n];
  const auto input = [&](size_t i) -> Tensor& { return frame_.values[node.inputs[i]]; };
  const Tensor& gradient = frame_.gradients[node.outputs[0]];
  if (!gradient) return;
  num_positions_ = context_.time;
  std::array<Tensor, 3> gradients = ring_backward(
      ring_of(runner_.first_op(node)), input(0), input(1), input(2),
      {frame_.values[node.outputs[0]], frame_.saved[n].at(0)}, gradient,
      [&](const Tensor& q, const Tensor& k, const Tensor& v, const PartialAttention& whole, const Tensor& of_output,
          AttentionOffsets offsets) { return attend_backward(node, q, k, v, whole, of_output, offsets); });
  for (size_t i = 0; i < gradients.size(); ++i)
    if (node.input_needs_grad[i]) runner_.accumulate(node.inputs[i], std::move(gradients[i]));
}

}  // namespace chassis
