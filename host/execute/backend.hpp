// The part of an executor that computes single nodes. Kernels calls those of the providers; Rehearsal only allocates
// what they would, so that counters show the memory of a step.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "host/service/tensor.hpp"

namespace chassis {

class KernelRunner;
class PieceCalls;
struct AttentionCall;
struct Node;
struct PartialAttention;
struct RunContext;

// [step] Has no state of its own, so that several executors may share it.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Tensors are allocated there.
  Device device() const { return device_; }

  // Record the position of the step, as in host/service/step_place.hpp.
  virtual void enter_unit(const char* phase, int microbatch, int64_t unit) const = 0;
  virtual void enter_node(const std::string& name) const = 0;

  // The functions below compute a node. Before, `runner.call` has the tensors that the kernel reads or writes; after,
  // also those that it makes. Errors of kernels name provider and node.

  // `sizes` is the runner's context with the sizes of this call.
  virtual void forward(KernelRunner& runner, const Node& node, const char* phase, const RunContext& sizes) const = 0;
  virtual void forward_backward(KernelRunner& runner, const Node& node) const = 0;
  // Computes all gradients of a node that is differentiated by autograd. Returns false for others, and does nothing.
  virtual bool backward_by_autograd(KernelRunner& runner, const Node& node) const = 0;
  virtual void backward_inputs(KernelRunner& runner, const Node& node) const = 0;
  // After backward_inputs() of the same call, or instead of it.
  virtual void backward_params(KernelRunner& runner, const Node& node) const = 0;
  // In a later call than backward_inputs().
  virtual void deferred_backward_params(KernelRunner& runner, const Node& node) const = 0;
  // The gradients of inputs that come from one piece of the rows (piece_calls.hpp).
  virtual void backward_piece(KernelRunner& runner, const Node& node, const PieceCalls& calls, int64_t piece) const = 0;
  // Attention to some of the keys (ring_attention.hpp), and the gradients of q, k and v that come from these keys.
  // `whole` is the result for all keys, and `gradient` that of its output.
  virtual PartialAttention attend(KernelRunner& runner, const Node& node, const AttentionCall& call) const = 0;
  virtual std::array<Tensor, 3> attend_backward(KernelRunner& runner, const Node& node, const AttentionCall& call,
                                                const PartialAttention& whole, const Tensor& gradient) const = 0;

 protected:
  explicit Backend(Device device) : device_(device) {}

 private:
  const Device device_;
};

}  // namespace chassis
