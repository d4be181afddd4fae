// The gradients that both calls give of one input are summed here.
#include "host/execute/piece_nodes.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "host/graph/op_table.hpp"

namespace chassis {

void PieceNodes::forward(size_t n, bool saves, const char* phase) {
  const Node& node = block_.nodes[n];
  const PieceCalls calls(block_, node, context_);
  const Tensor output = runner_.empty(node.outputs[0]);
  std::vector<Tensor> whole, here(node.inputs.size());
  for (const ValueId v : node.inputs) whole.push_back(v == kAbsent ? Tensor() : frame_.values[v]);
  if (context_.cache() && runner_.first_op(node).spec().is_attention())
    for (uint32_t i : {1u, 2u}) whole[i] = context_.cache()->append(context_.unit, node.inputs[i], whole[i]);
  std::vector<Tensor> saved;
  for (int64_t piece = 0; piece < kRowPieces; ++piece) {
    call_.reset(node, true);
    call_.raw.flags = saves ? CHASSIS_CALL_TRAINING : 0;
    call_.raw.query_offset = calls.query_offset(piece);
    for (size_t i = 0; i < here.size(); ++i) here[i] = calls.input(i, whole[i], piece);
    KernelCall::lend(here, call_.inputs);
    Tensor place = piece_of(output, kTimeDim, piece);
    if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS))
      call_.outputs[0] =
          (place.is_contiguous() ? place : Tensor::empty(place.sizes(), place.dtype(), place.device())).release();
    backend_.forward(runner_, node, phase, calls.context());
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

void PieceNodes::backward(size_t n) {
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
    KernelCall::lend(here, call_.inputs);
    const Tensor of_output = piece_of(gradient, kTimeDim, piece).contiguous();
    call_.grad_outputs[0] = of_output.handle();
    Tensor output;
    if (node.keeps_output(0)) output = piece_of(frame_.values[node.outputs[0]], kTimeDim, piece).contiguous();
    call_.outputs[0] = output.handle();
    const size_t num_saved = node.infer.num_saved, first = static_cast<size_t>(piece) * num_saved;
    for (size_t i = 0; i < num_saved; ++i) call_.saved[i] = frame_.saved[n].at(first + i).handle();
    backend_.backward_piece(runner_, node, calls, piece);
    for (size_t i = 0; i < sums.size(); ++i)
      if (node.inputs[i] != kAbsent) take_gradient(node, i, calls, piece, sums[i]);
  }
  for (size_t i = 0; i < sums.size(); ++i)
    if (sums[i]) runner_.accumulate(node.inputs[i], std::move(sums[i]));
}

void PieceNodes::take_gradient(const Node& node, size_t i, const PieceCalls& calls, int64_t piece, Tensor& sum) {
  Tensor part;
  if (call_.grad_inputs[i]) {
    check_gradient(call_, block_, calls.context(), node, i, calls.input_sizes(i, piece));
    part = KernelCall::take(call_.grad_inputs[i]);
  } else if (node.input_needs_grad[i]) {
    count_missing_gradient(node, i);
  }
  if (node.input_needs_grad[i]) calls.add_gradient(i, std::move(part), piece, sum);
}

}  // namespace chassis
