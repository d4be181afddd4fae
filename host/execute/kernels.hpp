// Calls the kernels of the providers, with what a kernel gets in addition to its tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "host/execute/backend.hpp"

namespace chassis {

class Kernels final : public Backend {
 public:
  explicit Kernels(Device device) : Backend(device) {}

  void enter_unit(const char* phase, int microbatch, int64_t unit) const override;
  void enter_node(const std::string& name) const override;
  void forward(KernelRunner& runner, const Node& node, const char* phase, const RunContext& sizes) const override;
  void forward_backward(KernelRunner& runner, const Node& node) const override;
  bool backward_by_autograd(KernelRunner& runner, const Node& node) const override;
  void backward_inputs(KernelRunner& runner, const Node& node) const override;
  void backward_params(KernelRunner& runner, const Node& node) const override;
  void deferred_backward_params(KernelRunner& runner, const Node& node) const override;
  void backward_piece(KernelRunner& runner, const Node& node, const PieceCalls& calls, int64_t piece) const override;
  PartialAttention attend(KernelRunner& runner, const Node& node, const AttentionCall& call) const override;
  std::array<Tensor, 3> attend_backward(KernelRunner& runner, const Node& node, const AttentionCall& call,
                                        const PartialAttention& whole, const Tensor& gradient) const override;
};

}  // namespace chassis
