// Runs the cases of ops_cases.cpp on a provider and compares outputs and gradients with LibTorch's autograd.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/ops_cases.hpp"

namespace chassis::test {
namespace {

using Tensors = std::vector<at::Tensor>;

double difference(const at::Tensor& got, const at::Tensor& wanted) {
  if (!got.defined() || got.sizes() != wanted.sizes()) return INFINITY;
  if (wanted.numel() == 0) return 0;
  const double largest = wanted.abs().max().item<double>();
  const double off = (got.to(kDouble) - wanted).abs().max().item<double>();
  return std::isfinite(off) ? off / std::max(largest, 1e-6) : INFINITY;
}

struct Expected {
  at::Tensor output, grad_output;
  Tensors grad_inputs, grad_params;
};

// Reference results for tensors that are already rounded to `dtype`, so that only the rounding of the provider counts.
Expected expect(const OpsCase& ops_case, const Tensors& inputs, const Tensors& params, c10::ScalarType dtype) {
  const c10::AutoGradMode on(true);
  Tensors leaves, x, p;
  const auto leaf = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.scalar_type() == kInt) return tensor;
    leaves.push_back(tensor.to(kDouble).clone().detach().requires_grad_(true));
    return leaves.back();
  };
  for (const at::Tensor& tensor : inputs) x.push_back(leaf(tensor));
  for (const at::Tensor& tensor : params) p.push_back(leaf(tensor));
  Expected out;
  out.output = ops_case.expected(x, p);
  out.grad_output = at::randn_like(out.output).detach();
  if (out.output.dim() == 0) out.grad_output.fill_(0.37);
  out.grad_output = out.grad_output.to(dtype).to(kDouble);
  const Tensors gradients = torch::autograd::grad({out.output}, leaves, {out.grad_output}, {}, false, true);
  size_t next = 0;
  const auto gradient = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.scalar_type() == kInt) return at::Tensor();
    const at::Tensor found = gradients[next++];
    return found.defined() ? found : at::zeros_like(tensor, at::TensorOptions(kDouble));
  };
  for (const at::Tensor& tensor : inputs) out.grad_inputs.push_back(gradient(tensor));
  for (const at::Tensor& tensor : params) out.grad_params.push_back(gradient(tensor));
  out.output = out.output.detach();
  return out;
}

}  // namespace

Bounds bounds_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return {1e-12, 1e-11};
    case at::kFloat:
      return {3e-6, 1e-5};
    default:
      return {2e-2, 3e-2};
  }
}

bool check_case(OpsProvider& provider, const OpsCase& ops_case, c10::ScalarType dtype, Bounds bounds) {
  if (ops_case.is_wide && dtype == at::kBFloat16) return true;
  NodeSpec node = ops_case.node(dtype);
  if (!provider.refusal(node).empty()) return false;
  SCOPED_TRACE(ops_case.name + " in " + c10::toString(dtype));
  const auto rounded = [&](const Tensors& tensors) {
    Tensors out;
    for (const at::Tensor& tensor : tensors)
      out.push_back(tensor.defined() && tensor.scalar_type() == kDouble ? tensor.to(dtype) : tensor);
    return out;
  };
  const Tensors inputs = rounded(ops_case.inputs), params = rounded(ops_case.params);
  const chassis_infer_t infer = provider.infer(node);
  // Several outputs are joined in one tensor, each with the sizes of its operand.
  const auto separated = [&](const at::Tensor& joined) {
    if (node.outputs.size() == 1) return Tensors{joined};
    Tensors parts;
    int64_t at = 0;
    for (const int output : node.outputs) {
      const int64_t count = c10::multiply_integers(node.sizes(output));
      parts.push_back(joined.reshape({-1}).narrow(0, at, count).view(node.sizes(output)));
      at += count;
    }
    return parts;
  };
  const auto joined = [](const Tensors& outputs) {
    Tensors parts;
    for (const at::Tensor& output : outputs) parts.push_back(output.reshape({-1}));
    return at::cat(parts);
  };

  std::vector<std::pair<std::string, NodeCall>> ways = {{"plainly", {}}};
  ways.push_back({"adding gradients", {true, true, true}});
  if (infer.flags & CHASSIS_KERNEL_FORWARD_BACKWARD) {
    ways.push_back({"in one call", {true, false, false, true}});
    ways.push_back({"in one call, adding gradients", {true, true, true, true}});
  }
  for (int i = 0; i < 2; ++i)
    if (infer.overwrites_inputs >> i & 1) {
      NodeCall how;
      how.overwrite_input = i;
      // The host overwrites nothing that backward reads.
      how.training = !(infer.keeps_inputs >> i & 1);
      ways.push_back({"over input " + std::to_string(i), how});
    }
  for (auto& [way, how] : ways) {
    SCOPED_TRACE(way);
    how.query_offset = ops_case.query_offset;
    how.key_offset = ops_case.key_offset;
    how.num_positions = ops_case.num_positions;
    how.random_key = kRandomKey;
    how.first_row = kFirstRow;
    const auto output_dtype = node.dtype(node.outputs.back());
    const Expected wanted = expect(ops_case, inputs, params, output_dtype);
    const at::Tensor grad_output = wanted.grad_output.to(output_dtype);
    try {
      const NodeResult got = provider.run(node, inputs, params, separated(grad_output), how);
      EXPECT_LE(difference(joined(got.outputs), wanted.output.reshape({-1})), bounds.output);
      if (!how.training) continue;
      for (size_t i = 0; i < inputs.size(); ++i)
        if (wanted.grad_inputs[i].defined() && node.needs_grad(node.inputs[i])) {
          EXPECT_LE(difference(got.grad_inputs[i], wanted.grad_inputs[i]), bounds.gradient) << "input " << i;
        }
      for (size_t i = 0; i < params.size(); ++i)
        if (wanted.grad_params[i].defined() && node.needs_grad(node.params[i])) {
          EXPECT_LE(difference(got.grad_params[i], wanted.grad_params[i]), bounds.gradient) << "parameter " << i;
        }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  return true;
}

}  // namespace chassis::test
