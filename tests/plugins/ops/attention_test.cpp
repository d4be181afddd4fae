// Attention under every mask, forward and backward, against LibTorch's autograd in double precision.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "host/service/memory.hpp"
#include "tests/support/ops_cases.hpp"

namespace chassis::test {
namespace {

struct Run {
  std::string library;
  c10::ScalarType dtype;
  bool tiles = false;  // sdpa's own method for parts of rows on CUDA, here on the CPU
};

class AttentionNumerics : public testing::TestWithParam<Run> {};

TEST_P(AttentionNumerics, AgreeWithAutogradInDoublePrecision) {
  const bool tiles = GetParam().tiles;
  OpsProvider provider(tiles ? "../../../tests/plugins/sdpa_tiles" : GetParam().library, tiles ? "sdpa_tiles" : "");
  for (const OpsCase& ops_case : attention_cases()) {
    // interval requires contiguous documents, as packing makes them, and refuses others when it is called.
    if (GetParam().library == "interval" && ops_case.name.find("returning") != std::string::npos) continue;
    const bool claimed = check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype));
    const bool unequal = ops_case.inputs[0].size(3) != ops_case.inputs[2].size(3);
    const bool capped = ops_case.name.ends_with("softcap");
    const bool wide_sums = ops_case.num_positions > 0 && GetParam().dtype == at::kDouble;
    const bool takes = GetParam().library != "sdpa" || (!capped && (!unequal || tiles));
    EXPECT_EQ(claimed, !wide_sums && takes) << ops_case.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Providers, AttentionNumerics,
                         testing::Values(Run{"naive", at::kDouble}, Run{"naive", at::kFloat},
                                         Run{"naive", at::kBFloat16}, Run{"sdpa", at::kDouble}, Run{"sdpa", at::kFloat},
                                         Run{"sdpa", at::kBFloat16}, Run{"interval", at::kFloat},
                                         Run{"interval", at::kBFloat16}, Run{"sdpa", at::kFloat, true},
                                         Run{"sdpa", at::kBFloat16, true}),
                         [](const testing::TestParamInfo<Run>& info) {
                           return info.param.library + "_" + c10::toString(info.param.dtype) +
                                  (info.param.tiles ? "_tiles" : "");
                         });

// Causal attention of these inputs: q, k, v and, for some, document ids.
NodeSpec attention_node(const std::vector<at::Tensor>& inputs, int64_t window = 0) {
  NodeSpec node;
  for (const at::Tensor& tensor : inputs)
    node.inputs.push_back(
        node.operand(tensor.sizes().vec(), tensor.scalar_type(), at::isFloatingType(tensor.scalar_type())));
  node.outputs.push_back(node.operand(inputs[0].sizes().vec(), inputs[0].scalar_type(), true));
  node.ops = {
      {"attention",
       node.inputs,
       {},
       node.outputs,
       {{"scale", 0.25}, {"causal", int64_t{1}}, {"window", window}, {"document", int64_t{inputs.size() > 3}}}}};
  return node;
}

NodeResult attend(OpsProvider& provider, const std::vector<at::Tensor>& inputs, const at::Tensor& grad) {
  NodeSpec node = attention_node(inputs);
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

TEST(Sdpa, PlansAMaskOnlyWhereItMakesOne) {
  OpsProvider provider("sdpa");
  constexpr uint64_t kTime = 98304, kRow = 4 * 16 * 4, kKeyRow = 2 * 16 * 4, kSums = 4 * 4;  // bytes of a position
  const auto meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const std::vector<at::Tensor> inputs = {at::empty({1, kTime, 4, 16}, meta), at::empty({1, kTime, 2, 16}, meta),
                                          at::empty({1, kTime, 2, 16}, meta),
                                          at::empty({1, kTime}, meta.dtype(at::kInt))};
  NodeSpec documents = attention_node(inputs), window = attention_node(inputs, 128);
  const chassis_infer_t infer = provider.infer(documents);
  EXPECT_EQ(infer.workspace_forward_bytes, kTime * (kRow + kSums)) << "the results of one segment";
  EXPECT_EQ(infer.workspace_backward_bytes, kTime * (kRow + 2 * kKeyRow)) << "the gradients of one segment";
  EXPECT_EQ(provider.infer(window).workspace_forward_bytes, kTime * kTime * 4);
}

TEST(Sdpa, MakesNoMaskForLongRowsOfShortDocuments) {
  install_memory_allocator();
  OpsProvider provider("sdpa");
  constexpr int64_t kTime = 1280, kLength = 8;
  const at::Tensor q = at::randn({1, kTime, 2, 8}), k = at::randn({1, kTime, 1, 8}), v = at::randn({1, kTime, 1, 8});
  const at::Tensor documents = at::arange(kTime, at::kInt).div(kLength, "floor").to(at::kInt).view({1, kTime});
  reset_peak_memory();
  const uint64_t before = memory_usage().live_bytes;
  attend(provider, {q, k, v, documents}, at::ones({1, kTime, 2, 8}));
  EXPECT_LT(memory_usage().peak_bytes - before, uint64_t{kTime} * kTime * 4);
}

TEST(Sdpa, SaysWhyItRefusesValuesOfAnotherHeadDim) {
  OpsProvider provider("sdpa");
  for (const OpsCase& ops_case : attention_cases()) {
    if (ops_case.inputs[0].size(3) == ops_case.inputs[2].size(3) || ops_case.name.ends_with("softcap")) continue;
    NodeSpec node = ops_case.node(at::kFloat);
    EXPECT_NE(provider.refusal(node).find("head dims of keys (8) and values (5) differ"), std::string::npos)
        << provider.refusal(node);
  }
}

TEST(Sdpa, SaysWhyItRefusesToCapScores) {
  OpsProvider provider("sdpa");
  NodeSpec node = attention_node({at::randn({1, 4, 2, 8}), at::randn({1, 4, 2, 8}), at::randn({1, 4, 2, 8})});
  EXPECT_EQ(provider.refusal(node), "");
  node.ops[0].attrs["softcap"] = 50.0;
  EXPECT_NE(provider.refusal(node).find("do not cap scores (softcap)"), std::string::npos) << provider.refusal(node);
}

}  // namespace
}  // namespace chassis::test
