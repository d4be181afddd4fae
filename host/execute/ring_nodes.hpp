// Attention nodes whose keys and values travel around the ranks of an axis (ring_attention.hpp).
#pragma once

#include <cstddef>

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
};

}  // namespace chassis
