// The one place where LibTorch's autograd is used: the backward of a node whose provider offers only forward.
#include "host/execute/composed.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "host/base/error.hpp"
#include "host/execute/kernel_call.hpp"
#include "host/plugin/status.hpp"
#include "host/service/autograd.hpp"
#include "host/service/handle.hpp"
#include "host/service/returned.hpp"

namespace chassis {
namespace {

// Autograd leaves over the memory of the given tensors.
std::vector<at::Tensor> leaves_of(const chassis_tensor_t* handles, size_t count, const std::vector<bool>& needs_grad) {
  std::vector<at::Tensor> leaves(count);
  for (size_t i = 0; i < count; ++i)
    if (handles[i]) leaves[i] = tensor_of(handles[i]).detach().set_requires_grad(needs_grad[i]);
  return leaves;
}

std::vector<chassis_tensor_t> handles_of(std::vector<at::Tensor>& tensors) {
  std::vector<chassis_tensor_t> handles;
  for (at::Tensor& t : tensors) handles.push_back(t.defined() ? reinterpret_cast<chassis_tensor_t>(&t) : nullptr);
  return handles;
}

}  // namespace

void run_composed_backward(const Node& node, chassis_call_t& call) {
  translate_errors([&] {
    torch::autograd::AutoGradMode enabled(true);
    const size_t num_inputs = node.inputs.size(), num_params = node.params.size(), num_outputs = node.outputs.size();
    std::vector<bool> inputs_need(num_inputs), params_need(num_params);
    for (size_t i = 0; i < num_inputs; ++i) inputs_need[i] = node.input_needs_grad[i] != 0;
    for (size_t i = 0; i < num_params; ++i) params_need[i] = call.grad_params[i] != nullptr;
    auto inputs = leaves_of(call.inputs, num_inputs, inputs_need);
    auto params = leaves_of(call.params, num_params, params_need);
    auto input_handles = handles_of(inputs), param_handles = handles_of(params);
    std::vector<chassis_tensor_t> outputs(num_outputs, nullptr), saved(node.infer.num_saved, nullptr);

    chassis_call_t forward{};
    forward.struct_size = sizeof(forward);
    forward.inputs = input_handles.data();
    forward.params = param_handles.data();
    forward.outputs = outputs.data();
    forward.saved = saved.data();
    forward.query_offset = call.query_offset;
    forward.stream = call.stream;
    forward.random_key = call.random_key;
    forward.first_row = call.first_row;
    {
      AutogradRecording recording;
      throw_if_failed(
          call_plugin([&] { return node.provider->table->forward(node.provider->self, node.kernel.get(), &forward); }),
          provider_on(node));
    }
    const LentHandles lent[] = {{"input", input_handles}, {"parameter", param_handles}};
    std::vector<Tensor> returned;
    const auto take = [&](const char* what, const std::vector<chassis_tensor_t>& handles) {
      for (size_t i = 0; i < handles.size(); ++i) {
        if (!handles[i]) continue;
        if (const std::string wrong = lent_or_unknown_handle(handles[i], node.provider->tracked, lent); !wrong.empty())
          throw plugin_error(provider_on(node) + ": " + what + " " + std::to_string(i) + " is " + wrong);
        returned.push_back(Tensor::adopt(handles[i]));
      }
    };
    take("output", outputs);
    take("saved tensor", saved);
    torch::autograd::variable_list roots, root_gradients, leaves;
    for (size_t i = 0; i < num_outputs; ++i) {
      if (!outputs[i] || !tensor_of(outputs[i]).defined())
        throw plugin_error(provider_on(node) + ": forward left output " + std::to_string(i) +
                           " empty when it ran again for its gradient");
      if (call.grad_outputs[i] && tensor_of(outputs[i]).requires_grad()) {
        roots.push_back(tensor_of(outputs[i]));
        root_gradients.push_back(tensor_of(call.grad_outputs[i]));
      }
    }
    for (size_t i = 0; i < num_inputs; ++i)
      if (inputs_need[i]) leaves.push_back(inputs[i]);
    for (size_t i = 0; i < num_params; ++i)
      if (params_need[i]) leaves.push_back(params[i]);
    if (roots.empty())
      throw plugin_error(provider_on(node) +
                         ": forward of a composed op is not differentiable; it may call only ATen operators");
    auto gradients = torch::autograd::grad(roots, leaves, root_gradients, false, false, /*allow_unused=*/true);

    torch::autograd::AutoGradMode disabled(false);
    size_t next = 0;
    for (size_t i = 0; i < num_inputs; ++i)
      if (inputs_need[i]) {
        at::Tensor& gradient = gradients[next++];
        if (gradient.defined()) call.grad_inputs[i] = new_handle(gradient.contiguous());
      }
    for (size_t i = 0; i < num_params; ++i)
      if (params_need[i]) {
        at::Tensor& gradient = gradients[next++];
        at::Tensor& buffer = tensor_of(call.grad_params[i]);
        if (call.grad_params_beta[i] == 0.0f) buffer.zero_();
        if (gradient.defined()) buffer.add_(gradient);
      }
  });
}

}  // namespace chassis
