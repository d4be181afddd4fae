// The backward of a collective is its dual. A shift does not wait: its result is taken where it is first read.
#include "host/execute/collective_nodes.hpp"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/log_sum.hpp"
#include "host/state/shape.hpp"

namespace chassis {
namespace {

// The part of `whole` that comm.take returns.
Tensor taken(const Op& op, const Tensor& whole, const std::vector<int64_t>& sizes) {
  const auto dim = static_cast<int>(op.attr_int("dim", 0));
  return whole.narrow(dim, op.attr_int("first", 0), sizes[static_cast<size_t>(dim)]);
}

CollectiveCall call_of(const Op& op) {
  return {op.comm(),
          std::get<std::string>(*op.attr("axis")),
          static_cast<int>(op.attr_int("dim", 0)),
          static_cast<int>(op.attr_int("to", 0)),
          static_cast<double>(op.attr_int("pad", 0)),
          op.attr_int(kZigzag, 0) != 0,
          op.attr_int(kSharers, 1)};
}

}  // namespace

Tensor run_collective(const RunContext& context, const CollectiveCall& call, const Tensor& input) {
  CHASSIS_CHECK(context.collectives, "the program has collectives, but the executor was given none");
  return context.collectives->run(call, input);
}

void CollectiveNodes::forward(const Node& node) {
  const Op& op = runner_.first_op(node);
  const Tensor& input = frame_.values[node.inputs[0]];
  const GraphValue& value = block_.block.values[node.outputs[0]];
  if (!input) {  // a field that the batch leaves out: generation has no document_ids, since each row is one document
    CHASSIS_CHECK(value.type == GraphValueType::kInt32, "only fields may be absent");
    return;
  }
  if (op.comm() == CommOp::kShift) {
    shifts_[node.outputs[0]] = shift(op, input, false);
    return;
  }
  Tensor output = op.comm() == CommOp::kCopy    ? input
                  : op.comm() == CommOp::kTake  ? taken(op, input, context_.local_shape(value)).contiguous()
                  : op.comm() == CommOp::kChunk ? read_chunk(input, chunk_of(op, node.outputs[0]))
                  : op.comm() == CommOp::kPut   ? put(node)
                  : op.comm() == CommOp::kSum   ? sum(node)
                                                : collective(call_of(op), input, node.outputs[0]);
  if (output.sizes() != context_.local_shape(value))  // kernels write where the program says
    throw internal_error(op.id.text() + " of '" + value.name + "' gives " + text(Shape(output.sizes())) +
                         ", expected " + text(Shape(context_.local_shape(value))));
  frame_.values[node.outputs[0]] = std::move(output);
}

void CollectiveNodes::backward(const Node& node) {
  const Op& op = runner_.first_op(node);
  Tensor& gradient = frame_.gradients[node.outputs[0]];
  if (!gradient || !node.input_needs_grad[0]) return;
  if (op.comm() == CommOp::kLogSumExp)
    return runner_.accumulate(
        node.inputs[0], log_sum_gradient(gradient, frame_.values[node.inputs[0]], frame_.values[node.outputs[0]]));
  if (op.comm() == CommOp::kTake) {
    Tensor whole = runner_.empty(node.inputs[0], gradient.dtype());
    whole.zero();
    taken(op, whole, gradient.sizes()).copy_from(gradient);
    return runner_.accumulate(node.inputs[0], std::move(whole));
  }
  if (op.comm() == CommOp::kShift) {
    // The rest of the input's gradient is complete: it was computed while this was in transit.
    if (auto sent = shifts_.extract(node.outputs[0])) runner_.accumulate(node.inputs[0], sent.mapped()->take().at(0));
    return;
  }
  if (op.comm() == CommOp::kChunk) return add_gradient_of_chunk(node);
  if (op.comm() == CommOp::kPut || op.comm() == CommOp::kSum) {
    if (node.inputs[1] != kAbsent) runner_.accumulate(node.inputs[1], Tensor(gradient));
    runner_.accumulate(node.inputs[0], op.comm() == CommOp::kSum ? Tensor(gradient)
                                                                 : read_chunk(gradient, chunk_of(op, node.inputs[0])));
    return;
  }
  const CommOp dual = comm_spec(op.comm()).dual;
  if (dual == CommOp::kCopy) return runner_.accumulate(node.inputs[0], std::move(gradient));
  CollectiveCall call = call_of(op);
  call.op = dual;
  call.of_gradient = true;
  if (dual == CommOp::kAllToAll) std::swap(call.dim, call.to);
  runner_.accumulate(node.inputs[0], collective(call, gradient, node.inputs[0]));
}

std::unique_ptr<Shift> CollectiveNodes::shift(const Op& op, const Tensor& sent, bool back) {
  CHASSIS_CHECK(context_.collectives, "the program has a ring, but the executor was given no collectives");
  return context_.collectives->shift(std::get<std::string>(*op.attr("axis")), {sent.contiguous()}, back);
}

void CollectiveNodes::wait_for(ValueId v) {
  if (auto sent = shifts_.extract(v)) frame_.values[v] = std::move(sent.mapped()->take().at(0));
}

void CollectiveNodes::send_back(const Node& node) {
  const Tensor& gradient = frame_.gradients[node.outputs[0]];
  if (!gradient || !node.input_needs_grad[0]) return;
  shifts_[node.outputs[0]] = shift(runner_.first_op(node), gradient, true);
}

Chunk CollectiveNodes::chunk_of(const Op& op, ValueId id) const {
  const auto dim = static_cast<int>(op.attr_int("dim", 0));
  return {dim, op.attr_int("part", 0), runner_.local_shape(id)[static_cast<size_t>(dim)]};
}

Tensor CollectiveNodes::put(const Node& node) {
  const Tensor& chunk = frame_.values[node.inputs[0]];
  Tensor whole = node.inputs[1] != kAbsent ? frame_.values[node.inputs[1]] : Tensor();
  if (!whole) whole = runner_.empty(node.outputs[0], chunk.dtype());
  write_chunk(whole, chunk_of(runner_.first_op(node), node.inputs[0]), chunk);
  return whole;
}

Tensor CollectiveNodes::sum(const Node& node) {
  Tensor own = frame_.values[node.inputs[1]];
  own.add(frame_.values[node.inputs[0]]);
  return own;
}

void CollectiveNodes::add_gradient_of_chunk(const Node& node) {
  Tensor& whole = frame_.gradients[node.inputs[0]];
  const Tensor& gradient = frame_.gradients[node.outputs[0]];
  if (!whole) {
    whole = runner_.empty(node.inputs[0], gradient.dtype());
    whole.zero();
  } else if (!runner_.owns_gradient(node.inputs[0]) || runner_.is_deferred(whole)) {
    whole = whole.clone();
  }
  add_to_chunk(whole, chunk_of(runner_.first_op(node), node.outputs[0]), gradient);
}

Tensor CollectiveNodes::collective(const CollectiveCall& call, const Tensor& input, ValueId value) {
  Tensor result = run_collective(context_, call, input);
  if (!comm_spec(call.op).drops_padding) return result;
  const int64_t size = runner_.local_shape(value)[static_cast<size_t>(call.dim)];
  return result.size(call.dim) <= size ? result : result.narrow(call.dim, 0, size).contiguous();
}

}  // namespace chassis
