// The run of a block's nodes on the tensors of a frame: the call of the node that is running, and the sums of the
// gradients of values. All kinds of nodes and the backends use it.
#pragma once

#include <cstdint>

#include "host/execute/kernel_call.hpp"
#include "host/execute/run_context.hpp"

namespace chassis {

class KernelRunner {
 public:
  KernelRunner(const ResolvedBlock& block, const RunContext& context, Frame& frame)
      : block(block), context(context), frame(frame) {}

  const ResolvedBlock& block;
  const RunContext& context;
  Frame& frame;
  KernelCall call;  // call of the node that is running

  // Allocates as many bytes as infer asked for at the planned sizes, scaled up for more rows or positions.
  Tensor workspace(const Node& node, uint64_t bytes) const;

  const Op& first_op(const Node& node) const { return block.block.ops[node.ops[0]]; }
  Parameter& parameter(SlotId slot) const { return *(*context.parameters)[slot]; }
  chassis_tensor_t handle(ValueId v) const { return v == kAbsent ? nullptr : frame.values[v].handle(); }
  std::vector<int64_t> local_shape(ValueId v) const { return context.local_shape(block.block.values[v]); }
  // Returns an uninitialized tensor with the value's sizes on this rank.
  Tensor empty(ValueId v) const;
  Tensor empty(ValueId v, Dtype dtype) const { return Tensor::empty(local_shape(v), dtype, context.device()); }

  // Adds to the gradient of a value. A gradient may share its memory with the gradient of an output (add passes its own
  // through), so a shared sum is cloned before anything is added to it.
  void accumulate(ValueId value, Tensor gradient);
  // True if no gradient of another value shares its storage.
  bool owns_gradient(ValueId value) const;
  // True if a deferred node will read the tensor, so that nothing may write to its memory. False for empty tensors.
  bool is_deferred(const Tensor& tensor) const;
};

// Nodes of one kind, which share the runner.
class NodeKind {
 protected:
  explicit NodeKind(KernelRunner& runner)
      : runner_(runner),
        backend_(*runner.context.backend),
        block_(runner.block),
        context_(runner.context),
        frame_(runner.frame),
        call_(runner.call) {}

  KernelRunner& runner_;
  const Backend& backend_;
  const ResolvedBlock& block_;
  const RunContext& context_;
  Frame& frame_;
  KernelCall& call_;
};

}  // namespace chassis
