// Attention under every mask, forward and backward, against LibTorch's autograd in double precision.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ops_cases.hpp"

namespace chassis::test {
namespace {

struct Run {
  std::string library;
  c10::ScalarType dtype;
};

class AttentionNumerics : public testing::TestWithParam<Run> {};

TEST_P(AttentionNumerics, AgreeWithAutogradInDoublePrecision) {
  OpsProvider provider(GetParam().library);
  for (const OpsCase& ops_case : attention_cases()) {
    // interval requires contiguous documents, as packing makes them, and refuses others when it is called.
    if (GetParam().library == "interval" && ops_case.name.find("returning") != std::string::npos) continue;
    const bool claimed = check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype));
    const bool unequal = ops_case.inputs[0].size(3) != ops_case.inputs[2].size(3);
    EXPECT_EQ(claimed, !unequal || GetParam().library != "sdpa") << ops_case.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Providers, AttentionNumerics,
                         testing::Values(Run{"naive", at::kDouble}, Run{"naive", at::kFloat},
                                         Run{"naive", at::kBFloat16}, Run{"sdpa", at::kDouble}, Run{"sdpa", at::kFloat},
                                         Run{"sdpa", at::kBFloat16}, Run{"interval", at::kFloat}),
                         [](const testing::TestParamInfo<Run>& info) {
                           return info.param.library + "_" + c10::toString(info.param.dtype);
                         });

// Runs one attention over rows with these documents; the mask is causal.
NodeResult attend(OpsProvider& provider, const std::vector<at::Tensor>& inputs, const at::Tensor& grad) {
  NodeSpec node;
  for (const at::Tensor& tensor : inputs)
    node.inputs.push_back(
        node.operand(tensor.sizes().vec(), tensor.scalar_type(), at::isFloatingType(tensor.scalar_type())));
  node.outputs.push_back(node.operand(inputs[0].sizes().vec(), inputs[0].scalar_type(), true));
  node.ops = {{"attention",
               node.inputs,
               {},
               node.outputs,
               {{"scale", 0.25}, {"causal", int64_t{1}}, {"document", int64_t{inputs.size() > 3}}}}};
  return provider.run(node, inputs, {}, {grad});
}

TEST(Sdpa, GivesPackedDocumentsTheNumbersOfSeparateRows) {
  at::manual_seed(5);
  OpsProvider provider("sdpa");
  const auto options = at::TensorOptions(at::kFloat);
  const at::Tensor q = at::randn({1, 96, 4, 16}, options), k = at::randn({1, 96, 2, 16}, options),
                   v = at::randn({1, 96, 2, 16}, options), grad = at::randn({1, 96, 4, 16}, options);
  const at::Tensor documents = at::cat({at::zeros({1, 40}, at::kInt), at::ones({1, 56}, at::kInt)}, 1);
  const NodeResult packed = attend(provider, {q, k, v, documents}, grad);
  for (auto [begin, length] : {std::pair{0, 40}, {40, 56}}) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, length).contiguous(); };
    const NodeResult alone = attend(provider, {part(q), part(k), part(v)}, part(grad));
    EXPECT_TRUE(at::equal(part(packed.outputs[0]), alone.outputs[0]));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(part(packed.grad_inputs[i]), alone.grad_inputs[i])) << i;
  }
}

TEST(Sdpa, SaysWhyItRefusesValuesOfAnotherHeadDim) {
  OpsProvider provider("sdpa");
  for (const OpsCase& ops_case : attention_cases()) {
    if (ops_case.inputs[0].size(3) == ops_case.inputs[2].size(3)) continue;
    NodeSpec node = ops_case.node(at::kFloat);
    EXPECT_NE(provider.refusal(node).find("head dims of keys (8) and values (5) differ"), std::string::npos)
        << provider.refusal(node);
  }
}

}  // namespace
}  // namespace chassis::test
