// Nodes that the layout pass inserted: collectives, shifts around the ranks of an axis, and chunks of values.
#pragma once

#include <map>
#include <memory>

#include "host/compile/chunks.hpp"
#include "host/execute/kernel_runner.hpp"

namespace chassis {

// [step] Throws an internal error if the executor was given no collectives.
Tensor run_collective(const RunContext& context, const CollectiveCall& call, const Tensor& input);

class CollectiveNodes : NodeKind {
 public:
  explicit CollectiveNodes(KernelRunner& runner) : NodeKind(runner) {}

  void forward(const Node& node);
  void backward(const Node& node);
  // Waits if the value is in transit from another rank.
  void wait_for(ValueId v);
  // Call it when the gradient of a shift's output is complete.
  void send_back(const Node& node);

 private:
  // The result has the sizes of `value`: padding at the end of an unevenly divided dim is removed.
  Tensor collective(const CollectiveCall& call, const Tensor& input, ValueId value);
  std::unique_ptr<Shift> shift(const Op& op, const Tensor& sent, bool back);
  // `id` is the value that holds only the chunk.
  Chunk chunk_of(const Op& op, ValueId id) const;
  Tensor put(const Node& node);
  Tensor sum(const Node& node);
  void add_gradient_of_chunk(const Node& node);

  std::map<ValueId, std::unique_ptr<Shift>> shifts_;  // in transit: the value, or in backward its gradient
};

}  // namespace chassis
