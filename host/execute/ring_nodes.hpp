// Attention nodes whose keys and values travel around the ranks of an axis (ring_attention.hpp): their kernels and
// tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "host/execute/kernel_runner.hpp"
#include "host/execute/ring_attention.hpp"

namespace chassis {

class RingNodes : NodeKind {
 public:
  explicit RingNodes(KernelRunner& runner) : NodeKind(runner) {}

  bool has(const Node& node) const { return runner_.first_op(node).attr(kRing) != nullptr; }
  void forward(size_t n, bool saves);
  void backward(size_t n);

 private:
  Ring ring_of(const Op& op) const;
  // Inputs 0 to 2 are the pieces of a call, the others are those of the whole rows.
  void lend(const Node& node, bool forward, const Tensor& q, const Tensor& k, const Tensor& v,
            AttentionOffsets offsets);
  PartialAttention attend(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                          AttentionOffsets offsets);
  std::array<Tensor, 3> attend_backward(const Node& node, const Tensor& q, const Tensor& k, const Tensor& v,
                                        const PartialAttention& whole, const Tensor& gradient,
                                        AttentionOffsets offsets);

  int64_t num_positions_ = 0;  // positions in a row
};

}  // namespace chassis
