// Runs nodes without their kernels: allocates the tensors that `infer` declares on a meta device, so that counters show
// the memory of a step. The ops decide which gradients share memory: those of a sum's terms, and that of a reshape.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "host/execute/backend.hpp"

namespace chassis {

class Rehearsal final : public Backend {
 public:
  explicit Rehearsal(Device meta) : Backend(meta) {}

  // A failure of the run that is being rehearsed has no place in this one.
  void enter_unit(const char*, int, int64_t) const override {}
  void enter_node(const std::string&) const override {}
  void forward(KernelRunner& runner, const Node& node, const char* phase, const RunContext& sizes) const override;
  void forward_backward(KernelRunner& runner, const Node& node) const override;
  // Such a node is rehearsed as if it had a backward of its own.
  bool backward_by_autograd(KernelRunner&, const Node&) const override { return false; }
  void backward_inputs(KernelRunner& runner, const Node& node) const override;
  void backward_params(KernelRunner& runner, const Node& node) const override;
  // backward_inputs() has counted the workspace of both parts.
  void deferred_backward_params(KernelRunner&, const Node&) const override {}
  void backward_piece(KernelRunner& runner, const Node& node, const PieceCalls& calls, int64_t piece) const override;
  PartialAttention attend(KernelRunner& runner, const Node& node, const AttentionCall& call) const override;
  std::array<Tensor, 3> attend_backward(KernelRunner& runner, const Node& node, const AttentionCall& call,
                                        const PartialAttention& whole, const Tensor& gradient) const override;
};

}  // namespace chassis
