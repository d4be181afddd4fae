// With gathered keys each rank computes two pieces of every row. Tests the operands of these calls, and that all ranks
// have the same amount of work. Runs on meta tensors.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/add.h>
#include <ATen/ops/sum.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "host/execute/executor.hpp"
#include "host/graph/op_table.hpp"
#include "host/service/handle.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::LoadedPlugins;
using test::StubNode;
using test::StubProvider;
using Sizes = std::vector<int64_t>;

constexpr int64_t kRanks = 4, kLength = 64;
const Device kOnMeta{Device::Type::kMeta, 0};
const char* kSmallLlama = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 64})";

class GatheredContext final : public LayoutStrategy {
 public:
  explicit GatheredContext(int64_t rank) : rank_(rank) {}
  std::string axis() const override { return "cp"; }
  int64_t axis_size() const override { return kRanks; }
  int64_t coordinate() const override { return rank_; }
  Division divide(const Program&) const override { return {.context = ContextMode::kGather}; }

 private:
  int64_t rank_;
};

class ShapedCollectives final : public Collectives {
 public:
  Tensor run(const CollectiveCall& call, const Tensor& input) override {
    Sizes sizes = input.sizes();
    int64_t& size = sizes.empty() ? sizes.emplace_back(1) : sizes[static_cast<size_t>(call.dim)];
    if (call.op == CommOp::kAllGather) size *= kRanks;
    if (call.op == CommOp::kReduceScatter || call.op == CommOp::kSlice) size = (size + kRanks - 1) / kRanks;
    return Tensor::empty(input.sizes().empty() ? Sizes() : sizes, input.dtype(), input.device());
  }
};

struct AttentionCall {
  int64_t begin, num_queries, num_keys;
  auto operator<=>(const AttentionCall&) const = default;

  // The number of pairs of a query and a key that it sees.
  int64_t num_causal_scores() const {
    int64_t sum = 0;
    for (int64_t t = begin; t < begin + num_queries; ++t) sum += t < kLength ? std::min(num_keys, t + 1) : 0;
    return sum;
  }
};
using Calls = std::vector<AttentionCall>;

struct RankRun {
  Calls forward, backward;
  std::vector<StubNode> nodes;
};

// With `composed`, attention has no backward of its own, so forward is called again.
RankRun run_rank(int64_t rank, bool causal, int64_t time = kLength, bool composed = false) {
  RankRun out;
  LoadedPlugins plugins;
  Program program = plugins.record_model("llama", kSmallLlama);
  for (BlockType& block : program.blocks)
    for (Op& op : block.ops)
      if (op.spec().is_attention())
        std::ranges::find(op.attrs, "causal", [](const auto& attr) { return attr.first; })->second = int64_t{causal};
  StubProvider provider("all");
  const auto record = [](const StubNode& node, const chassis_call_t& call, Calls& calls) {
    if (node.pattern == "attention")
      calls.push_back(
          {call.query_offset, Tensor::share(call.inputs[0]).size(1), Tensor::share(call.inputs[1]).size(1)});
  };
  provider.plan = [](const StubNode& node, chassis_infer_t& infer) {
    if (node.pattern == "attention") infer.keeps_inputs = 0b111;
  };
  const auto forward = provider.forward;
  provider.forward = [&](const StubNode& node, chassis_call_t& call) {
    record(node, call, out.forward);
    forward(node, call);
  };
  const auto backward = provider.backward_inputs;
  provider.backward_inputs = [&](const StubNode& node, chassis_call_t& call) {
    record(node, call, out.backward);
    for (size_t i = 0; node.pattern == "attention" && i < 3; ++i)
      call.grad_inputs[i] = Tensor::empty(Tensor::share(call.inputs[i]).sizes(), Dtype::f32, kOnMeta).release();
    backward(node, call);
  };
  StubProvider differentiated("composed", {"attention"});
  differentiated.plan = [](const StubNode&, chassis_infer_t& infer) { infer.flags = CHASSIS_KERNEL_COMPOSED; };
  differentiated.forward = [&](const StubNode& node, chassis_call_t& call) {
    record(node, call, out.forward);
    call.outputs[0] = new_handle(at::add(tensor_of(call.inputs[0]), at::sum(tensor_of(call.inputs[1]))));
  };
  differentiated.table().backward_inputs = nullptr;
  std::vector<OpsProvider> providers = {provider.provider()};
  if (composed) providers.insert(providers.begin(), differentiated.provider());
  const GatheredContext context(rank);
  CompileOptions options{.resolve = {.device = kOnMeta, .batch = 2, .time = time, .kernels = std::move(providers)}};
  options.passes.layout = {&context};
  const CompiledProgram compiled = compile(std::move(program), std::move(options));
  const ParameterStorage storage(compiled.parameters(), kOnMeta);
  ShapedCollectives collectives;
  Executor executor(compiled, {.collectives = &collectives});
  Fields fields;
  for (const char* name : {"input_ids", "positions", "document_ids", "labels"})
    fields[name] = Tensor::empty(Sizes{2, time}, Dtype::i32, kOnMeta);
  executor.forward(0, fields, 1.0);
  executor.backward(0);
  out.nodes = provider.nodes;
  return out;
}

TEST(PieceCalls, GiveEveryRankAsManyScores) {
  const int64_t length = kLength / (2 * kRanks);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const RankRun run = run_rank(rank, true);
    const int64_t late = 2 * kRanks - 1 - rank;
    const Calls expected = {{rank * length, length, (rank + 1) * length}, {late * length, length, (late + 1) * length}};
    EXPECT_EQ(run.forward, expected) << rank;
    Calls backward = run.backward;
    std::ranges::sort(backward);
    EXPECT_EQ(backward, expected) << rank;
    EXPECT_EQ(expected[0].num_causal_scores() + expected[1].num_causal_scores(), kLength * (kLength + 1) / 2 / kRanks);
    EXPECT_EQ(expected[0].num_keys + expected[1].num_keys, kLength + length) << "keys that are read";
  }
}

// Providers plan with the sizes of one call.
TEST(PieceCalls, AreWhatProvidersAreAskedFor) {
  const RankRun run = run_rank(1, true);
  const auto node = std::ranges::find(run.nodes, "attention", &StubNode::pattern);
  ASSERT_NE(node, run.nodes.end());
  EXPECT_EQ(node->inputs[0].shape, (Sizes{2, kLength / (2 * kRanks), 4, 8}));
  EXPECT_EQ(node->inputs[1].shape, (Sizes{2, kLength, 2, 8}));
  EXPECT_TRUE(node->has_attr("query_part"));
  EXPECT_FALSE(node->has_attr("comm."));
}

// The last piece has one position, and three of padding.
TEST(PieceCalls, EndWithTheRow) {
  const RankRun run = run_rank(0, true, 29);
  EXPECT_EQ(run.forward, (Calls{{0, 4, 4}, {28, 4, 29}}));
}

TEST(PieceCalls, TellAComposedForwardWhereItsQueriesAre) {
  const RankRun run = run_rank(1, true, kLength, true);
  const Calls pieces = run_rank(1, true).forward;
  EXPECT_EQ(run.forward, (Calls{pieces[0], pieces[1], pieces[1], pieces[0]})) << "forward, and again for backward";
}

TEST(PieceCalls, AreOneWhereEveryQuerySeesAllKeys) {
  EXPECT_EQ(run_rank(1, false).forward, (Calls{{kLength / kRanks, kLength / kRanks, kLength}}));
}

}  // namespace
}  // namespace chassis
