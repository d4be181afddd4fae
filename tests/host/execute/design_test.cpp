// Tests the design: passes and providers divide, quantise, adapt and fuse the Llama that its plugin records, which
// knows nothing of them. Runs on meta tensors, with strategies and providers written here.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "host/execute/executor.hpp"
#include "host/state/cover.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/program_text.hpp"
#include "tests/support/stub_passes.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::LoadedPlugins;
using test::program_text;
using test::StubNode;
using test::StubProvider;
using test::TensorAxis;
using Lines = std::vector<std::string>;

constexpr int64_t kBatch = 2, kTime = 8, kWays = 2;
const Device kMeta{Device::Type::kMeta, 0};
// The vocabulary of 51 ids does not divide evenly and is padded.
const char* kLlama = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 51})";

TensorAxis tensor_parallel(bool sequence) { return {kWays, {"heads", "kv_heads", "ffn", "vocab"}, sequence}; }

// Moves no data; returns tensors of the shapes that a collective would return.
class RecordingCollectives final : public Collectives {
 public:
  Lines log;

  Tensor run(const CollectiveCall& call, const Tensor& input) override {
    const CommOp op = call.op;
    const std::string& axis = call.axis;
    std::vector<int64_t> shape = input.sizes();
    const bool moves = op == CommOp::kAllGather || op == CommOp::kReduceScatter || op == CommOp::kSlice;
    log.push_back(std::string(comm_spec(op).name.substr(kCommPrefix.size())) + " " + axis +
                  (moves ? " dim " + std::to_string(call.dim) : "") + " " + StubNode::text(shape));
    int64_t& size = shape[static_cast<size_t>(call.dim)];
    if (op == CommOp::kAllGather)
      size *= kWays;
    else if (moves)
      size /= kWays;
    return Tensor::empty(shape, input.dtype(), input.device());
  }

  std::unique_ptr<Shift> shift(const std::string&, std::vector<Tensor> sent, bool back) override {
    log.push_back((back ? "shift back " : "shift ") + StubNode::text(sent.at(0).sizes()));
    return std::make_unique<LoggedShift>(log, std::move(sent));
  }

 private:
  class LoggedShift final : public Shift {
   public:
    LoggedShift(Lines& log, std::vector<Tensor> sent) : log_(log), sent_(std::move(sent)) {}
    std::vector<Tensor> take() override {
      log_.push_back("arrived");
      return std::move(sent_);
    }

   private:
    Lines& log_;
    std::vector<Tensor> sent_;
  };
};

struct Rewrites {
  bool adapter = false, quant = false, fused = false, quant_provider = true;
};

// A Llama with the chosen rewrites, run once forward and backward on meta tensors.
class MetaRun {
 public:
  MetaRun(const LayoutStrategy* strategy, Rewrites rewrites = {}) {
    LoadedPlugins plugins;
    recorded = plugins.record_model("llama", kLlama);
    const std::string before = program_text(recorded);
    general.refuse = [](const StubNode& node) {
      return node.has_attr(".storage=") ? std::string("reads only plain weights, not storage nf4") : std::string();
    };
    quant.refuse = [](const StubNode& node) {
      return node.has_attr(".storage=nf4") ? std::string() : std::string("the weight is not stored as nf4");
    };
    const test::LowRankAdapter adapter;
    const test::QuantScheme nf4("nf4");
    CompileOptions options{.resolve = {.device = kMeta, .batch = kBatch, .time = kTime}};
    if (rewrites.adapter) options.passes.adapters = {&adapter};
    if (strategy) options.passes.layout = {strategy};
    if (rewrites.quant) options.passes.quant = {&nf4};
    if (rewrites.fused) options.resolve.kernels.push_back(fused.provider());
    if (rewrites.quant && rewrites.quant_provider) options.resolve.kernels.push_back(quant.provider());
    options.resolve.kernels.push_back(general.provider());
    compiled = compile(recorded, std::move(options));
    untouched = before == program_text(recorded) && before == program_text(plugins.record_model("llama", kLlama));
    storage.emplace(compiled->parameters(), kMeta);
    executor = std::make_unique<Executor>(*compiled, ExecutorParts{.collectives = &collectives});
  }

  void run() {
    const int64_t sizes[] = {kBatch, kTime};
    Fields fields;
    for (const char* name : {"input_ids", "positions", "document_ids", "labels"})
      fields[name] = Tensor::empty(sizes, Dtype::i32, kMeta);
    executor->forward(0, fields, 1.0);
    forward = std::exchange(collectives.log, {});
    executor->backward(0);
    backward = std::exchange(collectives.log, {});
  }

  const ResolvedBlock& unit(size_t i) { return *executor->resolved(Purpose::kTraining).units[i]; }
  const StubNode& node(const std::string& name) {
    for (const StubProvider* provider : {&general, &quant, &fused})
      for (const StubNode& node : provider->nodes)
        if (node.name == name) return node;
    throw internal_error("no node " + name);
  }

  Program recorded;
  bool untouched = false;
  StubProvider general{"general"}, quant{"nf4", {"linear"}}, fused{"fused", {"add+rms_norm"}};
  RecordingCollectives collectives;
  std::optional<CompiledProgram> compiled;
  std::optional<ParameterStorage> storage;
  std::unique_ptr<Executor> executor;
  Lines forward, backward;
};

Lines join(std::initializer_list<Lines> parts) {
  Lines all;
  for (const Lines& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const std::string kReduce = "all_reduce tp [2, 8, 32]";
const Lines kLoss = {"log_sum_exp tp [2, 8]", "all_reduce tp [2, 8]"};
const std::string kGather = "all_gather tp dim 1 [2, 4, 32]", kScatter = "reduce_scatter tp dim 1 [2, 8, 32]";

TEST(Design, WithoutAStackNothingIsInserted) {
  MetaRun run(nullptr);
  EXPECT_EQ(program_text(run.compiled->program()), program_text(run.recorded));
  run.run();
  EXPECT_EQ(run.forward, Lines());
  EXPECT_EQ(run.backward, Lines());
  EXPECT_EQ(run.node("layer.attention").inputs[0].shape, (std::vector<int64_t>{kBatch, kTime, 4, 8}));
}

TEST(Design, TensorParallelHasExactlyTheExpectedCollectives) {
  const TensorAxis tp = tensor_parallel(false);
  MetaRun run(&tp);
  run.run();
  const Lines layer = {kReduce, kReduce};
  // embedding; o_proj and down_proj of each layer; loss
  EXPECT_EQ(run.forward, join({{kReduce}, layer, layer, kLoss}));
  EXPECT_EQ(run.backward, join({{kReduce}, layer, layer}));  // lm_head; inputs of the MLP and of attention
  EXPECT_TRUE(run.untouched);
}

TEST(Design, SequenceParallelHasExactlyTheExpectedCollectives) {
  const TensorAxis sp = tensor_parallel(true);
  MetaRun run(&sp);
  run.run();
  const Lines forward = {kGather, kScatter, kGather, kScatter}, backward = {kGather, kScatter, kGather, kScatter};
  EXPECT_EQ(run.forward, join({{kScatter}, forward, forward, {kGather}, kLoss}));
  EXPECT_EQ(run.backward, join({{kScatter}, backward, backward, {kGather}}));
  EXPECT_TRUE(run.untouched);
  for (const ParameterSlot& slot : run.compiled->program().blocks[1].slots)
    EXPECT_EQ(!slot.partial_over.empty(), slot.role == CHASSIS_ROLE_NORM) << slot.name;
}

// Every shift begins before a product that does not need it, and is waited for after that product.
TEST(Design, RingsTravelWhileProductsAreComputed) {
  const TensorAxis ring(kWays, {"heads", "kv_heads", "ffn", "vocab"}, true, 0, true);
  MetaRun run(&ring);
  const auto log_product = [&](const StubNode& node) {
    if (node.pattern == "linear") run.collectives.log.push_back(node.name.substr(node.name.rfind("proj") - 2));
  };
  run.general.forward = [&, compute = run.general.forward](const StubNode& node, chassis_call_t& call) {
    if (node.name.starts_with("layer")) log_product(node);
    compute(node, call);
  };
  run.general.backward_inputs = [&, compute = run.general.backward_inputs](const StubNode& node, chassis_call_t& call) {
    if (node.name.starts_with("layer")) log_product(node);
    compute(node, call);
  };
  run.run();
  const std::string there = "shift [2, 4, 32]", back = "shift back [2, 4, 32]", here = "arrived";
  const Lines gather_qkv = {there, "q_proj.0", "k_proj.0", "v_proj.0", here, "q_proj.1", "k_proj.1", "v_proj.1"},
              scatter_o = {"o_proj.0", there, "o_proj.1", here},
              gather_mlp = {there, "e_proj.0", "p_proj.0", here, "e_proj.1", "p_proj.1"},
              scatter_down = {"n_proj.0", there, "n_proj.1", here};
  const Lines forward = join({gather_qkv, scatter_o, gather_mlp, scatter_down});
  EXPECT_EQ(run.forward, join({{kScatter}, forward, forward, {kGather}, kLoss}));
  const Lines back_down = {back, "n_proj.1", here, "n_proj.0"},
              back_mlp = {"p_proj.1", "e_proj.1", back, "p_proj.0", "e_proj.0", here},
              back_o = {back, "o_proj.1", here, "o_proj.0"},
              back_qkv = {"v_proj.1", "k_proj.1", "q_proj.1", back, "v_proj.0", "k_proj.0", "q_proj.0", here};
  const Lines backward = join({back_down, back_mlp, back_o, back_qkv});
  EXPECT_EQ(run.backward, join({{kScatter}, backward, backward, {kGather}}));
}

TEST(Design, EachRankHasItsShareOfHeadsAndWidths) {
  for (bool sequence : {false, true}) {
    const TensorAxis strategy = tensor_parallel(sequence);
    MetaRun run(&strategy);
    run.run();
    const int64_t time = sequence ? kTime / 2 : kTime;  // between the divided regions
    using Shape = std::vector<int64_t>;
    const StubNode attention = run.node("layer.attention");
    EXPECT_EQ(attention.inputs[0].shape, (Shape{kBatch, kTime, 2, 8}));
    EXPECT_EQ(attention.inputs[1].shape, (Shape{kBatch, kTime, 1, 8}));
    EXPECT_EQ(attention.inputs[2].shape, (Shape{kBatch, kTime, 1, 8}));
    EXPECT_EQ(attention.inputs[0].dims, (Lines{"B", "T", "heads", "head_dim"}));
    EXPECT_EQ(run.node("layer.self_attn.q_proj").params[0].shape, (Shape{16, 32}));
    EXPECT_EQ(run.node("layer.self_attn.k_proj").params[0].shape, (Shape{8, 32}));
    EXPECT_EQ(run.node("layer.self_attn.o_proj").params[0].shape, (Shape{32, 16}));
    EXPECT_EQ(run.node("layer.mlp.gate_proj").outputs[0].shape, (Shape{kBatch, kTime, 32}));
    EXPECT_EQ(run.node("layer.mlp.down_proj").params[0].shape, (Shape{32, 32}));
    EXPECT_EQ(run.node("layer.input_layernorm.weight").inputs[0].shape, (Shape{kBatch, time, 32}));
    EXPECT_EQ(run.node("head.lm_head").outputs[0].shape, (Shape{kBatch, kTime, 26}));
    EXPECT_TRUE(run.node("head.cross_entropy.part").has_attr("first=0"));
    EXPECT_TRUE(run.node("head.cross_entropy.part").has_attr("count=26"));
    EXPECT_TRUE(run.node("embed.embedding").has_attr("first=0"));
    EXPECT_EQ(run.compiled->parameters().find("lm_head.weight")->value.sizes(), (Shape{26, 32}));
    EXPECT_EQ(run.compiled->parameters().find("lm_head.weight")->descriptor.global_shape, (::chassis::Shape{51, 32}));
  }
}

TEST(Design, TheShardsOfAllRanksCoverEveryParameterOnce) {
  const TensorAxis tp = tensor_parallel(false);
  MetaRun run(&tp);
  const MeshShape mesh({{"tp", kWays}});
  std::vector<Layout> layouts;
  for (const auto& p : run.compiled->parameters().all()) layouts.emplace_back(p->descriptor, mesh);
  EXPECT_NO_THROW(prove_cover(layouts));
  for (const Layout& layout : layouts) {
    const Parameter& p = *run.compiled->parameters().find(layout.descriptor().fqn);
    EXPECT_EQ(layout.local_shape(1), ::chassis::Shape(p.local_shape)) << p.name;
  }
}

TEST(Design, AdaptersAddTheirOwnSmallCollectivesUnderTensorParallelism) {
  const TensorAxis tp = tensor_parallel(false);
  MetaRun run(&tp, {.adapter = true});
  run.run();
  const std::string rank = "all_reduce tp [2, 8, 4]";  // for the low-rank product only
  const Lines forward = {kReduce, rank, kReduce, rank};
  EXPECT_EQ(run.forward, join({{kReduce}, forward, forward, kLoss}));
  const Lines mlp = {rank, rank, kReduce}, attention = {rank, rank, rank};  // up, gate; v, k, q
  // Nothing is trained below the first adapters: the input of their layer needs no gradient.
  EXPECT_EQ(run.backward, join({{kReduce}, mlp, attention, {kReduce}, mlp, attention}));
  EXPECT_EQ(run.compiled->parameters().find("model.layers.1.mlp.up_proj.lora_b.weight")->value.sizes(),
            (std::vector<int64_t>{32, 4}));
  EXPECT_EQ(run.compiled->parameters().find("model.layers.1.mlp.down_proj.lora_a.weight")->value.sizes(),
            (std::vector<int64_t>{4, 32}));
  EXPECT_TRUE(run.untouched);
}

TEST(Design, QuantAdapterAndFusedProviderResolveInTheSameProgram) {
  for (bool sequence : {false, true}) {
    const TensorAxis strategy = tensor_parallel(sequence);
    MetaRun run(&strategy, {.adapter = true, .quant = true, .fused = true});
    int written = 0;
    run.quant.backward_params = [&](const StubNode&, chassis_call_t&) { ++written; };
    run.run();
    EXPECT_EQ(written, 0) << "the base is frozen";
    EXPECT_TRUE(run.untouched);

    Lines quantised, fused;
    for (const Node& node : run.unit(1).nodes) {
      if (node.provider && node.provider->name == "nf4") quantised.push_back(node.name);
      if (node.provider && node.provider->name == "fused") fused.push_back(node.name);
    }
    EXPECT_EQ(quantised,
              (Lines{"layer.self_attn.q_proj", "layer.self_attn.k_proj", "layer.self_attn.v_proj",
                     "layer.self_attn.o_proj", "layer.mlp.gate_proj", "layer.mlp.up_proj", "layer.mlp.down_proj"}));
    EXPECT_EQ(fused, (Lines{"layer.add+post_attention_layernorm.weight"}));
    const StubNode both = run.node(fused[0]);
    EXPECT_EQ(both.pattern, "add+rms_norm");
    EXPECT_EQ(both.inputs.size(), 2u);
    EXPECT_EQ(both.params.size(), 1u);
    EXPECT_EQ(both.outputs.size(), 2u);  // the sum is read again as the residual
    EXPECT_EQ(both.outputs[0].shape, (std::vector<int64_t>{kBatch, sequence ? kTime / 2 : kTime, 32}));
  }
}

TEST(Design, WithoutItsProviderAQuantisedWeightIsRefused) {
  try {
    MetaRun(nullptr, {.quant = true, .quant_provider = false}).run();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kPlugin);
    EXPECT_NE(std::string(e.what()).find("general (linear): reads only plain weights, not storage nf4"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace chassis
