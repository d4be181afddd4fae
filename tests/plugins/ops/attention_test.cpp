// Attention under every mask, forward and backward, against LibTorch's autograd in double precision.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>

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

double largest_error(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

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

// Counts the calls of an operator while it exists.
class CountedCalls {
 public:
  explicit CountedCalls(const std::string& name)
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
                                        num_calls += f.name() == wanted;
                                        return std::unique_ptr<at::ObserverContext>();
                                      }).scopes({at::RecordScope::FUNCTION}))) {
    wanted = name, num_calls = 0;
  }
  ~CountedCalls() { at::removeCallback(handle_); }
  int count() const { return num_calls; }

 private:
  static inline std::string wanted;
  static inline std::atomic<int> num_calls = 0;
  at::CallbackHandle handle_;
};

// Rows of `batch` with documents of 9 to 60 positions, and some padding at the end.
at::Tensor many_documents(int64_t batch, int64_t time) {
  const at::Tensor documents = at::full({batch, time}, -1, at::kInt);
  for (int64_t row = 0; row < batch; ++row)
    for (int64_t begin = 0, id = 0, length = 0; begin + 60 <= time; begin += length, ++id) {
      length = 9 + (row * 17 + id * 31) % 52;
      documents[row].narrow(0, begin, length).fill_(id);
    }
  return documents;
}

TEST(Sdpa, ComputesManyDocumentsInFewCallsWithinItsWorkspace) {
  install_memory_allocator();
  at::manual_seed(7);
  OpsProvider sdpa("sdpa"), naive("naive");
  constexpr int64_t kBatch = 4, kTime = 512;
  const at::Tensor q = at::randn({kBatch, kTime, 4, 32}), k = at::randn({kBatch, kTime, 2, 32}),
                   v = at::randn({kBatch, kTime, 2, 32}), grad = at::randn({kBatch, kTime, 4, 32});
  const at::Tensor documents = many_documents(kBatch, kTime);
  const int64_t num_documents = (std::get<0>(documents.max(1)) + 1).sum().item<int64_t>();
  for (const int64_t causal : {1, 0}) {
    NodeSpec node = attention_node({q, k, v, documents});
    node.ops[0].attrs["causal"] = causal;
    const NodeResult expected = naive.run(node, {q, k, v, documents}, {}, {grad});
    const chassis_infer_t infer = sdpa.infer(node);
    const uint64_t before = memory_usage().live_bytes;
    reset_peak_memory();
    const CountedCalls calls("aten::_scaled_dot_product_flash_attention_for_cpu");
    const NodeResult got = sdpa.run(node, {q, k, v, documents}, {}, {grad});
    const uint64_t results = q.nbytes() + kBatch * kTime * 4 * 4 + q.nbytes() + k.nbytes() + v.nbytes();
    const uint64_t kernels_own = 2 << 20;  // buffers of LibTorch's threads
    EXPECT_LT(memory_usage().peak_bytes - before, results + infer.workspace_backward_bytes + kernels_own);
    std::printf("%d calls for %d documents\n", calls.count(), static_cast<int>(num_documents));
    EXPECT_GT(num_documents, 50);
    // Without a causal mask only documents of one length share a call.
    EXPECT_LE(calls.count(), causal ? num_documents / 4 : num_documents) << num_documents;
    EXPECT_LT(largest_error(got.outputs[0], expected.outputs[0]), 1e-5);
    for (int i = 0; i < 3; ++i) EXPECT_LT(largest_error(got.grad_inputs[i], expected.grad_inputs[i]), 1e-4) << i;
  }
}

// Documents of one length share calls, and each has the numbers that it has alone.
TEST(Sdpa, GivesManyDocumentsOfOneLengthTheNumbersOfSeparateRows) {
  at::manual_seed(6);
  OpsProvider provider("sdpa");
  const at::Tensor q = at::randn({1, 240, 4, 16}), k = at::randn({1, 240, 2, 16}), v = at::randn({1, 240, 2, 16}),
                   grad = at::randn({1, 240, 4, 16});
  const at::Tensor documents = at::arange(240, at::kInt).div(30, "floor").to(at::kInt).view({1, 240});
  const NodeResult packed = attend(provider, {q, k, v, documents}, grad);
  for (int64_t begin = 0; begin < 240; begin += 30) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin, 30).contiguous(); };
    const NodeResult alone = attend(provider, {part(q), part(k), part(v)}, part(grad));
    EXPECT_TRUE(at::equal(part(packed.outputs[0]), alone.outputs[0])) << begin;
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
