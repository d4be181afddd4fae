// Nodes for which the rank has two pieces of every row (piece_calls.hpp): a kernel is called once for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/execute/kernel_runner.hpp"
#include "host/execute/piece_calls.hpp"

namespace chassis {

class PieceNodes : NodeKind {
 public:
  explicit PieceNodes(KernelRunner& runner) : NodeKind(runner) {}

  void forward(size_t n, bool saves, const char* phase);
  void backward(size_t n);

 private:
  void take_gradient(const Node& node, size_t i, const PieceCalls& calls, int64_t piece, Tensor& sum);
};

}  // namespace chassis
