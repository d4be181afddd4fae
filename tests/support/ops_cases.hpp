// Test cases for every op of the vocabulary, with results of LibTorch's autograd in double precision as the reference.
// They run on any provider that claims them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/support/ops_provider.hpp"

namespace chassis::test {

constexpr auto kInt = at::kInt;
constexpr auto kDouble = at::kDouble;

// The same for every call.
constexpr uint64_t kRandomKey = 0x0123456789abcdef;
constexpr int64_t kFirstRow = 0x500000007;

// 1 where dropout keeps an element of [B, T, elements], else 0.
at::Tensor dropout_mask(int64_t batch, int64_t time, int64_t elements, double p, int64_t first_row = kFirstRow);

struct OpsCase {
  std::string name;
  std::function<NodeSpec(c10::ScalarType dtype)> node;
  std::vector<at::Tensor> inputs, params;  // double, or i32; undefined where absent
  // The reference result for the same tensors in double; differentiable.
  std::function<at::Tensor(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& params)> expected;
  bool is_wide = false;  // has inputs that are never bf16
  int64_t query_offset = 0;
  int64_t key_offset = 0, num_positions = 0;  // for attention with key_part
};

std::vector<OpsCase> vocabulary_cases();  // all but attention
std::vector<OpsCase> attention_cases();
std::vector<OpsCase> expert_cases();  // mixtures of experts, but for their choice, which has no gradient
// With more elements than a provider keeps temporaries for at a time.
std::vector<OpsCase> large_cases();
// The patterns add+rms_norm, those of heads, and those of adapters' branches.
std::vector<OpsCase> fused_cases();

struct Bounds {
  double output = 0, gradient = 0;  // largest difference, relative to the largest value
};
Bounds bounds_of(c10::ScalarType dtype);

// Runs the case in every way that the kernel allows; adds a GoogleTest failure for each wrong result. Returns false if
// the provider refuses the node.
bool check_case(OpsProvider& provider, const OpsCase& ops_case, c10::ScalarType dtype, Bounds bounds);

}  // namespace chassis::test
