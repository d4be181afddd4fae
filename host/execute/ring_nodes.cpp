// With a key-value cache no rank waits for another: the cache has the keys of all.
#include "host/execute/ring_nodes.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "host/base/error.hpp"
#include "host/execute/collective_nodes.hpp"

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

void RingNodes::forward(size_t n, bool saves) {
  const Node& node = block_.nodes[n];
  const Op& op = runner_.first_op(node);
  const Ring ring = ring_of(op);
  if (!node.flag(CHASSIS_KERNEL_LOG_SUM))
    throw plugin_error(provider_on(node) + " does not return the log sum that attention with key_part needs");
  const auto input = [&](size_t i) -> Tensor& { return frame_.values[node.inputs[i]]; };
  int64_t num_positions = context_.sizes.time;  // in a row
  const AttendForward attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, AttentionOffsets offsets) {
    return backend_.attend(runner_, node, {q, k, v, offsets, num_positions});
  };
  Tensor& output = frame_.values[node.outputs[0]];
  if (context_.cache() == nullptr) {
    PartialAttention whole = ring_forward(ring, input(0), input(1), input(2), attend);
    output = std::move(whole.output);
    if (saves) frame_.saved[n] = {std::move(whole.log_sum)};
    return;
  }
  // A cache holds the keys of all ranks, so nothing has to travel.
  Tensor cached[2];
  for (uint32_t i = 0; i < 2; ++i) {
    const Tensor all = run_collective(context_, {CommOp::kAllGather, ring.axis, 1, 0, 0.0, true}, input(1 + i));
    const Tensor row = all.size(1) > context_.sizes.time ? all.narrow(1, 0, context_.sizes.time).contiguous() : all;
    cached[i] = context_.cache()->append(context_.unit, node.inputs[1 + i], row).contiguous();
  }
  num_positions += context_.cache()->length();
  output = attend_pieces(ring, input(0), cached[0], cached[1], context_.cache()->length(), attend);
}

void RingNodes::backward(size_t n) {
  const Node& node = block_.nodes[n];
  const auto input = [&](size_t i) -> Tensor& { return frame_.values[node.inputs[i]]; };
  const Tensor& gradient = frame_.gradients[node.outputs[0]];
  if (!gradient) return;
  std::array<Tensor, 3> gradients = ring_backward(
      ring_of(runner_.first_op(node)), input(0), input(1), input(2),
      {frame_.values[node.outputs[0]], frame_.saved[n].at(0)}, gradient,
      [&](const Tensor& q, const Tensor& k, const Tensor& v, const PartialAttention& whole, const Tensor& of_output,
          AttentionOffsets offsets) {
        return backend_.attend_backward(runner_, node, {q, k, v, offsets, context_.sizes.time}, whole, of_output);
      });
  for (size_t i = 0; i < gradients.size(); ++i)
    if (node.input_needs_grad[i]) runner_.accumulate(node.inputs[i], std::move(gradients[i]));
}

}  // namespace chassis
