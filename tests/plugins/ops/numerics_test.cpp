// Forward and backward of every op by every provider, against LibTorch's autograd in double precision.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/support/op_coverage.hpp"
#include "tests/support/ops_cases.hpp"

namespace chassis::test {
namespace {

struct Run {
  std::string library;
  c10::ScalarType dtype;
  bool claims_all = true;  // claims every op of the vocabulary
};

bool offers(const OpsProvider& provider, const OpsCase& ops_case) {
  const std::string pattern = ops_case.node(at::kFloat).pattern();
  for (uint32_t i = 0; i < provider.table().num_patterns; ++i)
    if (pattern == std::string_view(provider.table().patterns[i].ptr, provider.table().patterns[i].len)) return true;
  return false;
}

TEST(OpsCases, CoverTheOpTable) {
  std::set<std::string> covered;
  for (const auto& cases : {vocabulary_cases(), attention_cases(), expert_cases(), fused_cases()})
    for (const OpsCase& ops_case : cases)
      for (const OpSpec& op : ops_case.node(at::kFloat).ops) {
        covered.insert(op.id);
        for (const auto& [name, value] : op.attrs) covered.insert(op.id + "." + name);
      }
  // Its result has no gradient; `plugins check` compares it.
  for (const char* name : {"top_experts", "top_experts.groups", "top_experts.top_groups"}) covered.insert(name);
  for (const char* name : {"top_experts.aux_weight", "top_experts.balance"}) covered.insert(name);  // the host's own
  EXPECT_EQ(missing_from(covered), std::vector<std::string>{});
}

class Numerics : public testing::TestWithParam<Run> {};

TEST_P(Numerics, AgreeWithAutogradInDoublePrecision) {
  OpsProvider provider(GetParam().library);
  for (const OpsCase& ops_case : vocabulary_cases()) {
    if (!offers(provider, ops_case)) {
      EXPECT_FALSE(GetParam().claims_all) << ops_case.name;
      continue;
    }
    const bool claimed = check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype));
    EXPECT_TRUE(claimed || !GetParam().claims_all) << ops_case.name << " was refused";
  }
  EXPECT_EQ(provider.live_tensors(), 0);
}

TEST_P(Numerics, AgreeForExperts) {
  OpsProvider provider(GetParam().library);
  for (const OpsCase& ops_case : expert_cases())
    if (offers(provider, ops_case)) check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype));
  EXPECT_EQ(provider.live_tensors(), 0);
}

TEST_P(Numerics, AgreeForThePatternsThatAreClaimed) {
  OpsProvider provider(GetParam().library);
  for (const OpsCase& ops_case : fused_cases())
    if (offers(provider, ops_case)) check_case(provider, ops_case, GetParam().dtype, bounds_of(GetParam().dtype));
  EXPECT_EQ(provider.live_tensors(), 0);
}

TEST_P(Numerics, AnAbsentGradientOfTheOutputsGivesNoGradients) {
  OpsProvider provider(GetParam().library);
  const auto rounded = [](std::vector<at::Tensor> tensors) {
    for (at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.scalar_type() == at::kDouble) tensor = tensor.to(GetParam().dtype);
    return tensors;
  };
  for (const OpsCase& ops_case : fused_cases()) {
    NodeSpec node = ops_case.node(GetParam().dtype);
    if (!offers(provider, ops_case) || !provider.refusal(node).empty()) continue;
    for (const bool one_call : {false, true}) {
      SCOPED_TRACE(ops_case.name + (one_call ? " in one call" : ""));
      NodeCall how;
      how.forward_backward = one_call;
      const std::vector<at::Tensor> absent(node.outputs.size());
      const NodeResult got = provider.run(node, rounded(ops_case.inputs), rounded(ops_case.params), absent, how);
      for (const auto* gradients : {&got.grad_inputs, &got.grad_params})
        for (const at::Tensor& gradient : *gradients)
          if (gradient.defined()) {
            EXPECT_EQ(gradient.ne(0).sum().item<int64_t>(), 0);
          }
    }
  }
  EXPECT_EQ(provider.live_tensors(), 0);
}

TEST(LargeTensors, AgreeForTensorsThatAreProcessedInSlabs) {
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    OpsProvider provider("aten");
    for (const OpsCase& ops_case : large_cases()) EXPECT_TRUE(check_case(provider, ops_case, dtype, bounds_of(dtype)));
  }
}

// Long and short weights, for which the host uses different products.
TEST(LinearInBf16, GradientsOfWeightsAreSumsInFp32) {
  OpsProvider provider("aten");
  for (const auto& [out, in] : {std::pair{1100, 96}, {96, 1100}, {60, 40}})
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message() << out << " × " << in << (adds ? ", added" : ""));
      NodeSpec node;
      const int x = node.operand({2, 65, in}, at::kBFloat16, true),
                weight = node.operand({out, in}, at::kBFloat16, true);
      const int y = node.operand({2, 65, out}, at::kBFloat16, true);
      node.inputs = {x}, node.params = {weight}, node.outputs = {y};
      node.ops = {{"linear", {x}, {weight}, {y}, {}}};
      const auto bf16 = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
      const at::Tensor rows = bf16({2, 65, in}), gradient = bf16({2, 65, out});
      const at::Tensor found =
          provider.run(node, {rows}, {bf16({out, in})}, {gradient}, {.add_grad_params = adds}).grad_params[0];
      const at::Tensor expected =
          gradient.to(at::kDouble).view({130, out}).t().mm(rows.to(at::kDouble).view({130, in}));
      const double error = found.to(at::kDouble).sub(expected).norm().item().toDouble();
      EXPECT_LE(error, 1e-6 * expected.norm().item().toDouble());
    }
}

// As in HF Gemma: √2048 is 45.25 in bfloat16, not 45.2548.
TEST(Scale, RoundsTheFactorToTheDtypeOfX) {
  for (const std::string library : {"reference", "aten"}) {
    OpsProvider provider(library);
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      NodeSpec node;
      const int x = node.operand({1, 2, 3}, dtype, true), y = node.operand({1, 2, 3}, dtype, true);
      node.inputs = {x}, node.outputs = {y};
      node.ops = {{"scale", {x}, {}, {y}, {{"factor", std::sqrt(2048.0)}}}};
      const at::Tensor in = at::randn({1, 2, 3}).to(dtype), grad = at::randn({1, 2, 3}).to(dtype);
      const at::Tensor factor = at::full({}, std::sqrt(2048.0), dtype);
      const NodeResult got = provider.run(node, {in}, {}, {grad});
      EXPECT_TRUE(at::equal(got.outputs[0], in * factor)) << library;
      EXPECT_TRUE(at::equal(got.grad_inputs[0], grad * factor)) << library;
    }
  }
}

// A micro-batch draws the bits of its rows of the step, whatever the other rows of the call are.
TEST(Dropout, EveryProviderDropsTheSameElementsOfARow) {
  for (const std::string library : {"reference", "aten"})
    for (const c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16})
      for (const double p : {0.1, 0.5}) {
        SCOPED_TRACE(library + " in " + c10::toString(dtype));
        OpsProvider provider(library);
        const auto dropped = [&](int64_t batch, int64_t first_row) {
          NodeSpec node;
          const int x = node.operand({batch, 7, 777}, dtype, true), y = node.operand({batch, 7, 777}, dtype, true);
          node.inputs = {x}, node.outputs = {y};
          node.ops = {{"dropout", {x}, {}, {y}, {{"p", p}}}};
          EXPECT_EQ(provider.infer(node).keeps_inputs | provider.infer(node).keeps_outputs, 0u);
          EXPECT_EQ(provider.infer(node).num_saved, 0u);
          NodeCall how;
          how.random_key = kRandomKey;
          how.first_row = first_row;
          const at::Tensor ones = at::ones({batch, 7, 777}, at::TensorOptions(dtype));
          const NodeResult got = provider.run(node, {ones}, {}, {ones}, how);
          EXPECT_TRUE(at::equal(got.outputs[0], got.grad_inputs[0]));
          return got.outputs[0];
        };
        const at::Tensor whole = dropped(4, kFirstRow), mask = dropout_mask(4, 7, 777, p);
        EXPECT_TRUE(at::equal(whole.ne(0), mask.ne(0)));
        EXPECT_TRUE(at::equal(dropped(2, kFirstRow + 2), whole.narrow(0, 2, 2)));
        EXPECT_NEAR(mask.mean().item().toDouble(), 1 - p, 0.02);
      }
}

TEST(ChannelScale, KeepsItsInputOnlyForTheGradientOfItsWeight) {
  OpsProvider provider("aten");
  for (const bool trained : {false, true}) {
    NodeSpec node;
    const int x = node.operand({1, 2, 3}, at::kFloat, true), weight = node.operand({3}, at::kFloat, trained);
    const int y = node.operand({1, 2, 3}, at::kFloat, true);
    node.inputs = {x}, node.params = {weight}, node.outputs = {y};
    node.ops = {{"channel_scale", {x}, {weight}, {y}, {}}};
    EXPECT_EQ(provider.infer(node).keeps_inputs, trained ? 1u : 0u);
  }
}

// A weight of a frozen base: the kernel keeps nothing for it, and its gradient is never computed.
TEST(Linear, AFrozenWeightKeepsNothing) {
  OpsProvider provider("aten");
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const bool bias : {false, true}) {
      NodeSpec node;
      const int x = node.operand({2, 9, 40}, dtype, true), weight = node.operand({60, 40}, dtype, false);
      node.inputs = {x}, node.params = {weight};
      if (bias) node.params.push_back(node.operand({60}, dtype, false));
      node.outputs = {node.operand({2, 9, 60}, dtype, true)};
      node.ops = {{"linear", {x}, node.params, node.outputs, {}}};
      const chassis_infer_t infer = provider.infer(node);
      EXPECT_EQ(infer.keeps_inputs | infer.keeps_outputs | infer.num_saved, 0u);
      EXPECT_EQ(infer.workspace_backward_bytes, 0u);
      const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(dtype); };
      std::vector<at::Tensor> params = {random({60, 40})};
      if (bias) params.push_back(random({60}));
      const at::Tensor dy = random({2, 9, 60});
      const NodeResult got = provider.run(node, {random({2, 9, 40})}, params, {dy});
      for (const at::Tensor& gradient : got.grad_params) EXPECT_FALSE(gradient.defined());
      const at::Tensor expected = dy.to(at::kDouble).matmul(params[0].to(at::kDouble));
      const double error = (got.grad_inputs[0].to(at::kDouble) - expected).norm().item().toDouble();
      EXPECT_LE(error, (dtype == at::kFloat ? 1e-6 : 1e-2) * expected.norm().item().toDouble());
    }
}

// A head of 40 rows, of which every fourth has no label.
struct LogpHead {
  static constexpr int64_t kRows = 40, kHidden = 12, kVocab = 11;
  NodeSpec node;
  at::Tensor x, weight, labels;

  LogpHead(c10::ScalarType dtype, bool trains_weight)
      : x(at::randn({2, kRows / 2, kHidden}).to(dtype)),
        weight(at::randn({kVocab, kHidden}).mul(0.3).to(dtype)),
        labels(at::randint(kVocab, {2, kRows / 2}, at::TensorOptions(kInt))) {
    for (int64_t i = 0; i < kRows; i += 4) labels.view({-1})[i] = -100;
    const int in = node.operand(x.sizes().vec(), dtype, true), label = node.operand({2, kRows / 2}, kInt, false);
    const int logits = node.operand({2, kRows / 2, kVocab}, dtype, true);
    node.inputs = {in, label};
    node.params = {node.operand({kVocab, kHidden}, dtype, trains_weight)};
    node.outputs = {node.operand({2, kRows / 2}, at::kFloat, true)};
    node.ops = {{"linear", {in}, node.params, {logits}, {}},
                {"token_logp", {logits, label}, {}, node.outputs, {{"ignore_index", int64_t{-100}}}}};
  }
};

// Such as rows of pairs that a loss ignores, and of sequences that are only compared with others.
TEST(TokenLogp, RowsWithoutAGradientGiveNone) {
  for (const std::string library : {"aten", "fused"})
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t num_rows : {0, 3, 38}) {
        SCOPED_TRACE(library + " in " + c10::toString(dtype) + ", " + std::to_string(num_rows) + " rows");
        OpsProvider provider(library);
        LogpHead head(dtype, true);
        const at::Tensor gradient = at::zeros({LogpHead::kRows});
        gradient.narrow(0, LogpHead::kRows - num_rows, num_rows).copy_(at::randn({num_rows}));
        const NodeResult got =
            provider.run(head.node, {head.x, head.labels}, {head.weight}, {gradient.view(head.labels.sizes())});
        const at::Tensor x = head.x.to(kDouble).view({LogpHead::kRows, -1}), weight = head.weight.to(kDouble);
        const at::Tensor labels = head.labels.to(at::kLong).view({-1}), counts = labels != -100;
        const at::Tensor of_label = at::one_hot(labels * counts, LogpHead::kVocab);
        const at::Tensor of_logits =
            (of_label - at::softmax(x.mm(weight.t()), 1)) * (gradient.to(kDouble) * counts).unsqueeze(1);
        const auto expect_close = [&](const at::Tensor& found, const at::Tensor& expected) {
          const double error = (found.to(kDouble).view(expected.sizes()) - expected).norm().item().toDouble();
          EXPECT_LE(error, (dtype == at::kFloat ? 1e-6 : 2e-2) * expected.norm().item().toDouble());
        };
        expect_close(got.grad_inputs[0], of_logits.mm(weight));
        expect_close(got.grad_params[0], of_logits.t().mm(x));
        const at::Tensor unused =
            got.grad_inputs[0].view({LogpHead::kRows, -1}).index({at::logical_or(gradient == 0, counts.logical_not())});
        EXPECT_EQ(unused.ne(0).sum().item<int64_t>(), 0);
      }
}

// "fused" has tiles of 140 rows and 7792 columns here; "aten" has chunks of 59 rows.
TEST(TokenLogp, IsTheSameInChunksOfOtherSizes) {
  constexpr int64_t kRows = 140, kHidden = 16, kVocab = 70001;  // MKL sums fewer columns term by term
  const at::Tensor x = at::randn({2, kRows, kHidden}), weight = at::randn({kVocab, kHidden}),
                   gradient = at::randn({2, kRows});
  for (const int64_t ignored : {40, 9}) {
    SCOPED_TRACE(testing::Message() << "one label of " << ignored << " is ignored");
    NodeSpec node;
    const int in = node.operand({2, kRows, kHidden}, at::kFloat, true), label = node.operand({2, kRows}, kInt, false);
    const int logits = node.operand({2, kRows, kVocab}, at::kFloat, true);
    node.inputs = {in, label};
    node.params = {node.operand({kVocab, kHidden}, at::kFloat, true)};
    node.outputs = {node.operand({2, kRows}, at::kFloat, true)};
    node.ops = {{"linear", {in}, node.params, {logits}, {}},
                {"token_logp", {logits, label}, {}, node.outputs, {{"ignore_index", int64_t{-100}}}}};
    at::Tensor labels = at::randint(kVocab, {2, kRows}, at::TensorOptions(kInt));
    for (int64_t i = 0; i < 2 * kRows; i += ignored) labels.view({-1})[i] = -100;
    OpsProvider aten("aten"), fused("fused");
    const NodeResult expected = aten.run(node, {x, labels}, {weight}, {gradient}),
                     got = fused.run(node, {x, labels}, {weight}, {gradient});
    const auto expect_close = [](const at::Tensor& found, const at::Tensor& other) {
      EXPECT_LE((found - other).abs().max().item().toDouble(), 1e-5 * other.abs().max().item().toDouble());
    };
    expect_close(got.outputs[0], expected.outputs[0]);
    expect_close(got.grad_inputs[0], expected.grad_inputs[0]);
    expect_close(got.grad_params[0], expected.grad_params[0]);
  }
}

// Blocks and tiles of unequal sizes, with ignored rows: `rows` are more than one block, kVocab more than one tile, and
// neither is a multiple.
class TiledHead : public testing::TestWithParam<std::tuple<c10::ScalarType, std::string, bool, double>> {};

TEST_P(TiledHead, AgreesWithDoublePrecision) {
  const auto& [dtype, id, trains_weight, cap] = GetParam();
  constexpr int64_t kRows = 1031, kHidden = 24, kVocab = 16411;
  const bool is_loss = id == "cross_entropy";
  const at::Tensor x = at::randn({1, kRows, kHidden}).to(dtype), weight = at::randn({kVocab, kHidden}).to(dtype);
  // Labels in all tiles, the last column among them; half of the rows are confident.
  at::Tensor labels = at::randint(kVocab, {1, kRows}, at::TensorOptions(kInt));
  const at::Tensor logits_of_x = at::linear(x.to(kDouble), weight.to(kDouble)).view({kRows, kVocab});
  const at::Tensor best = logits_of_x.argmax(1).to(kInt);
  labels.view({-1}).narrow(0, 0, kRows / 2).copy_(best.narrow(0, 0, kRows / 2));
  labels.view({-1})[kRows - 2] = kVocab - 1;
  for (int64_t i = 3; i < kRows; i += 5) labels.view({-1})[i] = -100;

  NodeSpec node;
  const int in = node.operand({1, kRows, kHidden}, dtype, true), label = node.operand({1, kRows}, kInt, false);
  int last = node.operand({1, kRows, kVocab}, dtype, true);
  node.inputs = {in, label};
  node.params = {node.operand({kVocab, kHidden}, dtype, trains_weight)};
  node.outputs = {node.operand(is_loss ? std::vector<int64_t>{} : std::vector<int64_t>{1, kRows}, at::kFloat, true)};
  node.ops = {{"linear", {in}, node.params, {last}, {}}};
  if (cap > 0) {
    const int capped = node.operand({1, kRows, kVocab}, dtype, true);
    node.ops.push_back({"softcap", {last}, {}, {capped}, {{"cap", cap}}});
    last = capped;
  }
  node.ops.push_back({id, {last, label}, {}, node.outputs, {{"ignore_index", int64_t{-100}}}});

  const at::Tensor counts = (labels.view({-1}) != -100).to(kDouble),
                   index = labels.view({-1}).to(at::kLong).clamp_min(0);
  const at::Tensor factor = is_loss ? at::full({kRows}, -0.5, kDouble) : at::randn({kRows}, kDouble);
  const at::Tensor capped = cap > 0 ? at::tanh(logits_of_x / cap) * cap : logits_of_x;
  const at::Tensor all = at::log_softmax(capped, 1);
  at::Tensor of_logits = at::exp(all).neg_().mul_((factor * counts).unsqueeze(1));
  of_logits.scatter_add_(1, index.unsqueeze(1), (factor * counts).unsqueeze(1));
  if (cap > 0) of_logits.mul_(1 - (capped / cap).square());
  const at::Tensor logps = all.gather(1, index.unsqueeze(1)).squeeze(1) * counts;

  OpsProvider provider("fused");
  const at::Tensor gradient = is_loss ? at::full({}, 0.5) : factor.to(at::kFloat).view({1, kRows});
  for (const bool one_call : {false, true})
    for (const bool adds : {false, true}) {
      SCOPED_TRACE(testing::Message() << (one_call ? "in one call" : "in two calls") << (adds ? ", added" : ""));
      NodeCall how;
      how.forward_backward = one_call;
      how.add_grad_inputs = how.add_grad_params = adds;
      const NodeResult got = provider.run(node, {x, labels}, {weight}, {gradient}, how);
      const double bound = dtype == at::kFloat ? 2e-6 : 1e-2;
      const auto expect_close = [](const at::Tensor& found, const at::Tensor& expected, double most) {
        const double error = (found.to(kDouble).view(expected.sizes()) - expected).norm().item().toDouble();
        EXPECT_LE(error, most * expected.norm().item().toDouble());
      };
      expect_close(got.outputs[0], is_loss ? -logps.sum() : logps, 1e-6);
      expect_close(got.grad_inputs[0], of_logits.mm(weight.to(kDouble)), bound);
      if (trains_weight)
        expect_close(got.grad_params[0], of_logits.t().mm(x.to(kDouble).view({kRows, kHidden})), bound);
      else
        EXPECT_FALSE(got.grad_params[0].defined());
      if (!adds) {
        const at::Tensor ignored = got.grad_inputs[0].view({kRows, kHidden}).index({counts == 0});
        EXPECT_EQ(ignored.ne(0).sum().item<int64_t>(), 0);
      }
    }
  EXPECT_EQ(provider.live_tensors(), 0);
}

INSTANTIATE_TEST_SUITE_P(Heads, TiledHead,
                         testing::Combine(testing::Values(at::kFloat, at::kBFloat16),
                                          testing::Values("cross_entropy", "token_logp"), testing::Bool(),
                                          testing::Values(0.0, 8.0)));

// With a frozen weight no logits are kept: the memory does not grow with the vocabulary.
TEST(HeadMemory, OfAFrozenWeightDoesNotGrowWithTheVocabulary) {
  OpsProvider provider("fused");
  const auto bytes = [&](int64_t vocab, bool trains_weight) {
    NodeSpec node;
    const int in = node.operand({1, 4096, 64}, at::kFloat, true), label = node.operand({1, 4096}, kInt, false);
    const int logits = node.operand({1, 4096, vocab}, at::kFloat, true);
    node.inputs = {in, label}, node.params = {node.operand({vocab, 64}, at::kFloat, trains_weight)};
    node.outputs = {node.operand({}, at::kFloat, true)};
    node.ops = {{"linear", {in}, node.params, {logits}, {}},
                {"cross_entropy", {logits, label}, {}, node.outputs, {{"ignore_index", int64_t{-100}}}}};
    return provider.infer(node).workspace_backward_bytes;
  };
  EXPECT_EQ(bytes(8192 * 2, false), bytes(8192 * 16, false));
  EXPECT_LE(bytes(8192 * 16, false), 40u << 20);
  EXPECT_GE(bytes(8192 * 16, true), 512u * 8192 * 16 * 4);  // 512 rows of exponentials
  EXPECT_LE(bytes(8192, true), 64u << 20);
}

TEST(TokenLogp, AFrozenWeightKeepsOnlyTheGradientOfTheInput) {
  for (const std::string library : {"aten", "fused"})
    for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      OpsProvider provider(library);
      for (const bool trained : {false, true}) {
        LogpHead head(dtype, trained);
        if (!provider.refusal(head.node).empty()) continue;
        const chassis_infer_t infer = provider.infer(head.node);
        EXPECT_EQ(infer.num_saved, trained && library == "fused" ? 2u : 1u) << library;
        EXPECT_EQ(infer.keeps_inputs, trained ? 3u : 0u) << library;
        if (!trained) {
          EXPECT_EQ(infer.keeps_outputs, 0u) << library;
        }
        EXPECT_EQ(provider.infer(head.node, false).num_saved, 0u) << library;
      }
    }
}

// Logits and scores far from 0, whose neighbours in bf16 are 1 apart.
TEST(ResultsInFp32, AreNotRoundedInBetween) {
  for (const std::string library : {"reference", "aten"}) {
    OpsProvider provider(library);
    NodeSpec node;
    const int x = node.operand({1, 3, 200}, at::kBFloat16, true), weight = node.operand({2, 200}, at::kBFloat16, true);
    node.inputs = {x}, node.params = {weight}, node.outputs = {node.operand({1, 3, 2}, at::kFloat, true)};
    node.ops = {{"score", {x}, {weight}, node.outputs, {}}};
    const at::Tensor rows = at::randn({1, 3, 200}).add(1).to(at::kBFloat16),
                     head = at::randn({2, 200}).add(1).to(at::kBFloat16);
    const at::Tensor scores = provider.run(node, {rows}, {head}, {}).outputs[0];
    const at::Tensor expected = at::linear(rows.to(kDouble), head.to(kDouble));
    EXPECT_GT(expected.abs().max().item().toDouble(), 128);
    EXPECT_LE((scores.to(kDouble) - expected).abs().max().item().toDouble(), 1e-3) << library;
  }
  LogpHead head(at::kBFloat16, true);
  std::vector<std::string> libraries = {"aten"};
  if (OpsProvider("fused").refusal(head.node).empty()) libraries.emplace_back("fused");
  for (const std::string& library : libraries) {
    OpsProvider provider(library);
    const at::Tensor x = head.x.mul(64);
    const at::Tensor logps = provider.run(head.node, {x, head.labels}, {head.weight}, {}).outputs[0];
    const at::Tensor all = at::log_softmax(at::linear(x.to(kDouble), head.weight.to(kDouble)), -1);
    const at::Tensor labels = head.labels.to(at::kLong), counts = labels != -100;
    const at::Tensor expected = all.gather(2, (labels * counts).unsqueeze(2)).squeeze(2) * counts;
    EXPECT_LE((logps.to(kDouble) - expected).abs().max().item().toDouble(), 1e-3) << library;
  }
}

std::string name_of(const testing::TestParamInfo<Run>& info) {
  return info.param.library + "_" + c10::toString(info.param.dtype);
}

INSTANTIATE_TEST_SUITE_P(Providers, Numerics,
                         testing::Values(Run{"reference", at::kDouble}, Run{"reference", at::kFloat},
                                         Run{"reference", at::kBFloat16}, Run{"aten", at::kDouble},
                                         Run{"aten", at::kFloat}, Run{"aten", at::kBFloat16},
                                         Run{"fused", at::kFloat, false}, Run{"fused", at::kBFloat16, false}),
                         name_of);

}  // namespace
}  // namespace chassis::test
