// Checks the handles and the tensors that a kernel returns.
#include "host/execute/kernel_call.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/graph/op_table.hpp"
#include "host/service/returned.hpp"

namespace chassis {
namespace {

bool is_planned_size(const RunContext& context) { return context.sizes == context.options->planned(*context.program); }

template <typename Made>
void check_value(const ResolvedBlock& block, const RunContext& context, chassis_tensor_t tensor, ValueId id,
                 std::span<const int64_t> sizes, const Made& made) {
  const ExpectedTensor expected{dtype_of(block.block.values[id], context.options->compute), context.device(), sizes};
  if (!matches_expected(tensor, expected)) throw plugin_error(made() + mismatch_text(tensor, expected));
}

template <typename Made>
void check_value(const ResolvedBlock& block, const RunContext& context, const Node& node, chassis_tensor_t tensor,
                 ValueId id, const Made& made) {
  const bool planned = is_planned_size(context) && node.num_calls == 1;
  const auto other = planned ? std::vector<int64_t>() : context.local_shape(block.block.values[id]);
  check_value(block, context, tensor, id, planned ? std::span(block.value_shapes[id]) : std::span(other), made);
}

std::string made_gradient(const Node& node, size_t input) {
  return provider_on(node) + ": backward made the gradient of input " + std::to_string(input) + " ";
}

// Throws if the tensor lies in the memory of an input or parameter, because later nodes read those too.
template <typename Made>
void check_aliases(const KernelCall& call, chassis_tensor_t tensor, const Made& made) {
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (share_memory(tensor, call.inputs[i]))
      throw plugin_error(made() + "in the memory of input " + std::to_string(i) + ", expected memory of its own");
  for (size_t i = 0; i < call.params.size(); ++i)
    if (share_memory(tensor, call.params[i]))
      throw plugin_error(made() + "in the memory of parameter " + std::to_string(i) + ", expected memory of its own");
}

}  // namespace

void KernelCall::reset(const Node& node, bool forward) {
  release();
  owns_outputs_ = forward;
  inputs.assign(node.inputs.size(), nullptr);
  params.assign(node.params.size(), nullptr);
  components_.assign(node.params.size(), {});
  component_lists_.assign(node.params.size(), nullptr);
  outputs.assign(node.outputs.size(), nullptr);
  saved.assign(node.infer.num_saved, nullptr);
  grad_outputs.assign(node.outputs.size(), nullptr);
  grad_inputs.assign(node.inputs.size(), nullptr);
  grad_params.assign(node.params.size(), nullptr);
  beta.assign(node.params.size(), 0.0f);
  raw = {};
  raw.struct_size = sizeof(raw);
  raw.inputs = inputs.data();
  raw.params = params.data();
  raw.components = component_lists_.data();
  raw.outputs = outputs.data();
  raw.saved = saved.data();
  raw.grad_outputs = grad_outputs.data();
  raw.grad_inputs = grad_inputs.data();
  raw.needs_grad_inputs = node.input_needs_grad.data();
  raw.grad_params = grad_params.data();
  raw.grad_params_beta = beta.data();
}

void KernelCall::lend_param(size_t i, const Parameter& parameter) {
  params[i] = parameter.value.handle();
  if (!parameter.is_quantized()) return;
  for (const StoredComponent& component : parameter.components) components_[i].push_back(component.value.handle());
  params[i] = components_[i].front();
  component_lists_[i] = components_[i].data();
}

void KernelCall::remember_given() {
  given_outputs_ = outputs;
  given_gradients_ = grad_inputs;
}

std::string KernelCall::drop_invalid(bool tracked) {
  std::vector<chassis_tensor_t> components;
  for (const auto& of_param : components_) components.insert(components.end(), of_param.begin(), of_param.end());
  const LentHandles lent[] = {{"input", inputs},
                              {"component", components},
                              {"parameter", params},
                              {"gradient of output", grad_outputs},
                              {"gradient of parameter", grad_params},
                              {"kept output", owns_outputs_ ? std::span<chassis_tensor_t>() : outputs},
                              {"saved tensor", owns_outputs_ ? std::span<chassis_tensor_t>() : saved}};
  std::string first;
  seen_.clear();
  const auto check = [&](std::vector<chassis_tensor_t>& handles, size_t i, chassis_tensor_t given, const char* what) {
    chassis_tensor_t& handle = handles[i];
    if (handle == given) return;
    std::string wrong;
    if (given)
      wrong = "not the handle that the host gave it to write to";
    else if (std::any_of(seen_.begin(), seen_.end(), [&](auto* other) { return *other == handle; }))
      wrong = "a handle that it gave back before in the same call; each tensor needs its own handle";
    else
      wrong = lent_or_unknown_handle(handle, tracked, lent);
    if (wrong.empty()) return seen_.push_back(&handle);
    handle = given;
    if (first.empty()) first = std::string(what) + " " + std::to_string(i) + " is " + wrong;
  };
  for (size_t i = 0; owns_outputs_ && i < outputs.size(); ++i) check(outputs, i, given_outputs_[i], "output");
  for (size_t i = 0; owns_outputs_ && i < saved.size(); ++i) check(saved, i, nullptr, "saved tensor");
  for (size_t i = 0; i < grad_inputs.size(); ++i) check(grad_inputs, i, given_gradients_[i], "gradient of input");
  return first;
}

void KernelCall::lend(const std::vector<Tensor>& tensors, std::vector<chassis_tensor_t>& handles) {
  for (size_t i = 0; i < tensors.size(); ++i) handles[i] = tensors[i] ? tensors[i].handle() : nullptr;
}

void KernelCall::release() {
  if (owns_outputs_) {
    for (chassis_tensor_t& handle : outputs) take(handle);
    for (chassis_tensor_t& handle : saved) take(handle);
  }
  for (chassis_tensor_t& handle : grad_inputs) take(handle);
}

std::string provider_on(const Node& node) { return "provider '" + node.provider->name + "' on " + node.name; }

void count_missing_gradient(const Node& node, size_t input) {
  counted_warning(provider_on(node) + ": gradients left out", provider_on(node) + " returned no gradient of input " +
                                                                  std::to_string(input) + "; it counts as zero");
}

void check_outputs(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node) {
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const auto made = [&] { return provider_on(node) + ": forward made output " + std::to_string(i) + " "; };
    if (!call.outputs[i])
      throw plugin_error(provider_on(node) + ": forward left output " + std::to_string(i) + " empty");
    check_value(block, context, node, call.outputs[i], node.outputs[i], made);
    if (node.flag(CHASSIS_KERNEL_HOST_OUTPUTS) || block.block.ops[node.ops[0]].spec().is_view) continue;
    check_aliases(call, call.outputs[i], made);
  }
}

void check_gradient(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node,
                    size_t input) {
  const auto made = [&] { return made_gradient(node, input); };
  check_value(block, context, node, call.grad_inputs[input], node.inputs[input], made);
  check_aliases(call, call.grad_inputs[input], made);
}

void check_gradient(const KernelCall& call, const ResolvedBlock& block, const RunContext& context, const Node& node,
                    size_t input, std::span<const int64_t> sizes) {
  const auto made = [&] { return made_gradient(node, input); };
  check_value(block, context, call.grad_inputs[input], node.inputs[input], sizes, made);
  check_aliases(call, call.grad_inputs[input], made);
}

void check_saved(const RunContext& context, const Node& node, const std::vector<Tensor>& saved, bool has_all_keys) {
  if (saved.size() != node.infer.num_saved)
    throw plugin_error(provider_on(node) + ": infer sets num_saved to " + std::to_string(node.infer.num_saved) +
                       ", but forward saved " + std::to_string(saved.size()));
  if (!is_planned_size(context) || !has_all_keys) return;
  for (uint32_t i = 0; i < node.infer.num_saved; ++i) {
    const chassis_saved_t& declared = node.infer.saved[i];
    const int64_t elements = numel(Shape(std::span(declared.sizes, declared.num_dims)));
    const Tensor& made = saved[i];
    if (made.num_elements() != elements || static_cast<uint32_t>(made.dtype()) != declared.dtype)
      throw plugin_error(provider_on(node) + ": forward saved tensor " + std::to_string(i) + " with " +
                         std::to_string(made.num_elements()) + " elements of " + std::string(dtype_name(made.dtype())) +
                         ", but infer declared " + std::to_string(elements) + " of " +
                         std::string(dtype_name(static_cast<Dtype>(declared.dtype))));
  }
}

}  // namespace chassis
