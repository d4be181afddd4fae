// One call of a node's kernel: the handles behind chassis_call_t, and checks of the tensors that the kernel returns.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/execute/run_context.hpp"

namespace chassis {

// Reused from node to node. If something failed, tensors that a kernel returned but that were not taken are released by
// the next reset() or the destructor.
class KernelCall {
 public:
  KernelCall() = default;
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;
  ~KernelCall() { release(); }

  chassis_call_t raw{};
  std::vector<chassis_tensor_t> inputs, params, outputs, saved, grad_outputs, grad_inputs, grad_params;
  std::vector<float> beta;

  void reset(const Node& node, bool forward);
  // Lends the value of params[i], or its components.
  void lend_param(size_t i, const Parameter& parameter);
  // Must be called right before the kernel: remembers the handles that the kernel is given to write to.
  void remember_given();
  // Drops returned handles that are not the kernel's to return, without reading them. Returns the first one and the
  // reason; empty if there is none. `tracked` is as in lent_or_unknown_handle.
  std::string drop_invalid(bool tracked);

  // Empty tensors become NULL.
  static void lend(const std::vector<Tensor>& tensors, std::vector<chassis_tensor_t>& handles);
  // Takes over the tensor that the kernel put there.
  static Tensor take(chassis_tensor_t& handle) { return Tensor::adopt(std::exchange(handle, nullptr)); }

 private:
  void release();

  bool owns_outputs_ = false;                              // backward borrows them
  std::vector<std::vector<chassis_tensor_t>> components_;  // by param
  std::vector<const chassis_tensor_t*> component_lists_;
  std::vector<chassis_tensor_t> given_outputs_, given_gradients_;
  std::vector<chassis_tensor_t*> seen_;
};

std::string provider_on(const Node& node);  // "provider 'sdpa' on layer.attention"

// The ABI lets a provider leave out a zero gradient. Counted, so that the user can see which provider does.
void count_missing_gradient(const Node& node, size_t input);

// Each check throws a plugin error that names provider, node and tensor. It runs right after the call, because a node
// that reads a wrong tensor later could not tell which node made it.

// Checks that outputs have the dtype, device and shape of their values, and memory of their own.
void check_outputs(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node);
// The same for the gradient of one input, whose sizes may differ from those of its value.
void check_gradient(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node,
                    size_t input);
void check_gradient(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node,
                    size_t input, std::span<const int64_t> sizes);
// Checks that saved tensors have the number, sizes and dtypes that infer declared. Sizes are compared only at the
// planned sizes, and not if a call has fewer keys than the node.
void check_saved(const RunContext& context, const Node& node, const std::vector<Tensor>& saved,
                 bool has_all_keys = true);

}  // namespace chassis
