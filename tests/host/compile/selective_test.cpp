// The values that a block keeps and the nodes that run again; then whole steps, compared bit by bit.
#include "host/compile/selective.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "host/compile/liveness.hpp"
#include "host/service/memory.hpp"
#include "tests/support/counting_provider.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::CountingProvider;
using test::CpuRun;
using test::fields_of;
using test::LoadedPlugins;
using test::Recorder;
using test::StubNode;
using test::StubProvider;
using Names = std::set<std::string>;

// ---- the values that are kept

// A block in the middle of a chain, resolved by `provider`, which computes nothing.
struct Chosen {
  Chosen(const std::function<void(Recorder&, DimId hidden, DimId wide, ValueId x)>& body, StubProvider& provider) {
    program = test::record([&](Recorder& r) {
      const DimId v = r.dim("vocab", 11), h = r.dim("hidden", 4), w = r.dim("wide", 12);
      const uint32_t block = r.block("b", [&] {
        body(r, h, w, r.input("hidden", {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h}));
      });
      const uint32_t first = r.block("e", [&] {
        const SlotId table = r.slot("e", {{v}, {h}}, {CHASSIS_ROLE_EMBEDDING});
        r.output("hidden", r.op("embedding", "e", {r.field("input_ids")}, {table}, {}, {h}));
      });
      r.chain("first", "", {first});
      r.chain("layers", "layers.{i}", {block, block});
    });
    const ProgramLayout layout;
    const ParameterTable parameters(program, layout);
    ResolveOptions options;
    options.kernels = {provider.provider()};
    options.batch = 2, options.time = 3;
    whole = *resolve_program(program, layout, parameters, options).units[1];
    find_liveness(program, layout, options, whole);
    selective = recompute_selectively(whole, options.compute);
  }

  std::string name_of(ValueId v) const {
    for (const auto& [name, value] : whole.block.inputs)
      if (value == v) return name;
    return whole.block.values[v].name;
  }
  Names kept(const ResolvedBlock& block) const {
    Names names;
    for (ValueId v : block.kept) names.insert(name_of(v));
    return names;
  }
  // "act before down", in the order of backward.
  std::vector<std::string> again() const {
    std::vector<std::string> all;
    for (size_t n = selective.nodes.size(); n-- > 0;)
      for (size_t other : selective.nodes[n].recomputed_before_backward)
        all.push_back(short_name(other) + " before " + short_name(n));
    return all;
  }
  std::string short_name(size_t n) const { return selective.nodes[n].name.substr(2); }
  size_t index_of(const std::string& name) const {
    size_t n = 0;
    while (short_name(n) != name) ++n;
    return n;
  }

  Program program;
  ResolvedBlock whole, selective;
};

// Linears, norms and activations keep their input, products both inputs, rope and sums nothing.
void keep_inputs(const StubNode& node, chassis_infer_t& out) {
  if (node.pattern == "linear" || node.pattern == "rms_norm" || node.pattern == "activation") out.keeps_inputs = 1;
  if (node.pattern == "mul") out.keeps_inputs = 3;
  if (node.pattern != "rms_norm") return;
  out.num_saved = 1;
  out.saved[0] = {CHASSIS_DTYPE_F32, 1, {6}};
}

ValueId linear(Recorder& r, const std::string& name, ValueId x, DimId out, DimId in) {
  return r.op("linear", name, {x}, {r.slot(name, {{out}, {in}})}, {}, {out});
}
ValueId norm(Recorder& r, const std::string& name, ValueId x, DimId dim) {
  return r.op("rms_norm", name, {x}, {r.slot(name, {{dim}}, {CHASSIS_ROLE_NORM})}, {{"eps", 1e-5}});
}
ValueId gelu(Recorder& r, const std::string& name, ValueId x) {
  return r.op("activation", name, {x}, {}, {{"function", std::string("gelu")}});
}

TEST(Selective, KeepsMatrixProductsAndRecomputesNormsAndActivations) {
  StubProvider all("all");
  all.plan = keep_inputs;
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId up = linear(r, "up", norm(r, "norm", x, h), w, h);
        r.output("hidden", r.op("add", "sum", {x, linear(r, "down", gelu(r, "act", up), h, w)}));
      },
      all);
  EXPECT_EQ(chosen.kept(chosen.whole), (Names{"hidden", "norm", "up", "act"}));
  EXPECT_EQ(chosen.kept(chosen.selective), (Names{"hidden", "up"}));
  EXPECT_EQ(chosen.again(), (std::vector<std::string>{"act before down", "norm before up"}));
  EXPECT_EQ(chosen.selective.kept_bytes, 2u * 3 * 12 * 4);
  EXPECT_EQ(chosen.whole.saved_bytes, 6u * 4);
  EXPECT_EQ(chosen.selective.saved_bytes, 0u);
  const auto held = [&](BlockRecompute mode) { return held_bytes(chosen.whole, mode, Dtype::f32); };
  EXPECT_EQ(held(BlockRecompute::kNone), chosen.whole.kept_bytes + chosen.whole.saved_bytes);
  EXPECT_EQ(held(BlockRecompute::kSelective), chosen.selective.kept_bytes);
  EXPECT_EQ(held(BlockRecompute::kFull), 0u);
}

// A chain of cheap nodes runs again from its start.
TEST(Selective, RunsACheapNodeAgainForTheNextOne) {
  StubProvider all("all");
  all.plan = keep_inputs;
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId up = linear(r, "up", x, w, h);
        const ValueId twice = norm(r, "second", gelu(r, "first", up), w);
        r.output("hidden", linear(r, "down", twice, h, w));
      },
      all);
  EXPECT_EQ(chosen.kept(chosen.whole), (Names{"hidden", "up", "first", "second"}));
  EXPECT_EQ(chosen.kept(chosen.selective), (Names{"hidden", "up"}));
  EXPECT_EQ(chosen.again(), (std::vector<std::string>{"first before down", "second before down"}));
}

// Backward reads only the sum of two products. Keeping the sum takes half the bytes of keeping the products.
TEST(Selective, NeverKeepsMoreThanWithoutRecompute) {
  StubProvider all("all");
  all.plan = keep_inputs;
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId sum = r.op("add", "sum", {linear(r, "left", x, w, h), linear(r, "right", x, w, h)});
        r.output("hidden", linear(r, "down", sum, h, w));
      },
      all);
  EXPECT_EQ(chosen.kept(chosen.selective), (Names{"hidden", "sum"}));
  EXPECT_TRUE(chosen.again().empty());
}

// Backward reads two values that are made from one product. Keeping the product takes half the bytes of keeping both.
TEST(Selective, KeepsAProductFromWhichSeveralValuesAreMade) {
  StubProvider all("all");
  all.plan = keep_inputs;
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId up = linear(r, "up", x, w, h);
        const ValueId doubled = r.op("add", "doubled", {up, up});
        const ValueId one = linear(r, "one", r.op("add", "three", {doubled, up}), h, w);
        r.output("hidden", r.op("add", "sum", {one, linear(r, "two", doubled, h, w)}));
      },
      all);
  EXPECT_EQ(chosen.kept(chosen.whole), (Names{"hidden", "doubled", "three"}));
  EXPECT_EQ(chosen.kept(chosen.selective), (Names{"hidden", "up"}));
}

TEST(Selective, NothingThatMayBeExpensiveRunsAgain) {
  StubProvider own("own", {"mine/attention", "linear+activation", "linear", "embedding"});
  own.plan = [](const StubNode&, chassis_infer_t& out) { out.keeps_inputs = 3, out.keeps_outputs = 1; };
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId mine = r.op("mine/attention", "mine", {x}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h});
        const ValueId fused = gelu(r, "gelu", linear(r, "up", mine, w, h));
        r.output("hidden", linear(r, "down", fused, h, w));
      },
      own);
  ASSERT_EQ(chosen.whole.nodes.size(), 3u);
  for (const Node& node : chosen.whole.nodes) EXPECT_FALSE(is_cheap(chosen.whole.block, node)) << node.name;
  EXPECT_EQ(chosen.selective.kept, chosen.whole.kept);
  EXPECT_TRUE(chosen.again().empty());
}

TEST(Selective, ANodeThatMayWriteInPlaceDoesNotOverwriteKeptValues) {
  StubProvider all("all");
  all.plan = [](const StubNode& node, chassis_infer_t& out) {
    keep_inputs(node, out);
    out.flags = CHASSIS_KERNEL_HOST_OUTPUTS;
    if (node.pattern == "add") out.overwrites_inputs = 3;
  };
  const Chosen chosen(
      [](Recorder& r, DimId h, DimId w, ValueId x) {
        const ValueId p = linear(r, "p", x, w, h), q = linear(r, "q", x, w, h), from_q = linear(r, "from_q", q, h, w);
        const ValueId once = r.op("add", "once", {p, q}), from_once = linear(r, "from_once", once, h, w);
        const ValueId twice = r.op("add", "twice", {p, once}), from_twice = linear(r, "from_twice", twice, h, w);
        r.output("hidden", r.op("add", "out", {r.op("add", "sum", {from_q, from_once}), from_twice}));
      },
      all);
  const size_t twice = chosen.index_of("twice");
  EXPECT_EQ(chosen.kept(chosen.whole), (Names{"hidden", "q", "once", "twice"}));
  EXPECT_EQ(chosen.kept(chosen.selective), (Names{"hidden", "p", "q"}));
  EXPECT_EQ(chosen.whole.nodes[twice].overwritten_input, 0) << "nothing reads 'p' after it";
  EXPECT_EQ(chosen.selective.nodes[twice].overwritten_input, 1) << "'p' is kept, 'once' is recomputed";
  EXPECT_EQ(chosen.selective.nodes[twice].overwritten_by_recompute, 0) << "the last use of 'p'";
}

// ---- whole steps

struct StepProviders {
  std::vector<std::string> kernels;
  std::string attention;
  Dtype compute = Dtype::f32;
  friend void PrintTo(const StepProviders& p, std::ostream* out) {
    *out << p.kernels[0] << ", " << p.attention << ", " << dtype_name(p.compute);
  }
};

constexpr const char* kTiedLlama = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 56, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "attention_bias": true})";
constexpr int64_t kRows = 2, kLength = 24;

class SelectiveRun : public testing::TestWithParam<StepProviders> {
 protected:
  SelectiveRun() {
    install_memory_allocator();
    std::vector<OpsProvider> kernels;
    for (const std::string& id : GetParam().kernels) kernels.push_back(counted(id));
    run_ = std::make_unique<CpuRun>(plugins_.record_model("llama", kTiedLlama), kernels,
                                    std::vector<OpsProvider>{counted(GetParam().attention)}, kRows, kLength,
                                    GetParam().compute);
  }

  OpsProvider counted(const std::string& id) {
    counting_.push_back(std::make_unique<CountingProvider>(plugins_.ops(id)));
    return counting_.back()->provider();
  }
  static std::vector<Fields> micro_batches() {
    std::vector<Fields> all;
    for (int m = 0; m < 2; ++m) {
      std::vector<int32_t> ids(kRows * kLength);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((i * 7 + 31 * static_cast<size_t>(m)) % 96);
      all.push_back(fields_of(ids, kRows));
    }
    return all;
  }

  struct Seen {
    double loss = 0.0;
    std::map<std::string, std::vector<float>> gradients;
    std::map<std::string, int> runs;
  };
  Seen step(Recompute recompute) {
    run_->make(recompute);
    for (const auto& p : run_->parameters.all()) p->gradient.reset();
    for (auto& provider : counting_) provider->runs.clear();
    Seen seen;
    seen.loss = run_->step(micro_batches(), 0.125);
    for (const auto& [name, gradient] : run_->gradients()) seen.gradients[name] = test::values_of(gradient);
    for (auto& provider : counting_) seen.runs.merge(provider->runs);
    return seen;
  }
  void expect_same_bits(Recompute recompute) {
    const Seen kept = step(Recompute::kNone), again = step(recompute);
    EXPECT_EQ(again.loss, kept.loss) << text(recompute);
    ASSERT_EQ(again.gradients.size(), kept.gradients.size());
    for (const auto& [name, gradient] : kept.gradients)
      EXPECT_EQ(again.gradients.at(name), gradient) << name << ", " << text(recompute);
  }

  LoadedPlugins plugins_;
  std::vector<std::unique_ptr<CountingProvider>> counting_;
  std::unique_ptr<CpuRun> run_;
};

TEST_P(SelectiveRun, GivesTheSameBits) {
  for (const Recompute& recompute :
       {Recompute::kSelective, Recompute{.selective = 3}, Recompute{2, Recompute::kAll}, Recompute{1, 1}})
    expect_same_bits(recompute);
}

TEST_P(SelectiveRun, GivesTheSameBitsWithFrozenParameters) {
  for (const char* word : {"proj", "norm", "layers.0", "layers.2", "bias"}) {
    for (const auto& p : run_->parameters.all()) p->trainable = p->name.find(word) == std::string::npos;
    expect_same_bits(Recompute::kSelective);
  }
}

TEST_P(SelectiveRun, NoMatrixProductOrAttentionRunsTwice) {
  const int layers = 4, num_microbatches = 2;
  std::map<std::string, int> once = step(Recompute::kNone).runs, again = step(Recompute::kSelective).runs;
  const std::map<std::string, int> full = step(Recompute::kFull).runs;
  int num_twice = 0;
  for (const auto& [name, runs] : again) {
    const bool product = name.find("proj") != std::string::npos || name.find(".attention") != std::string::npos ||
                         name.find("lm_head") != std::string::npos;
    EXPECT_TRUE(runs == once.at(name) || (!product && runs == 2 * once.at(name))) << name << ": " << runs;
    EXPECT_LE(runs, full.at(name)) << name;
    if (name.starts_with("layer") && product) {
      EXPECT_EQ(runs, layers * num_microbatches) << name;
    }
    num_twice += runs > once.at(name);
  }
  EXPECT_EQ(num_twice, 3) << "two norms and the activation";
  EXPECT_EQ(step(Recompute{.selective = 3}).runs.at("layer.input_layernorm.weight"), (layers + 3) * num_microbatches);
}

INSTANTIATE_TEST_SUITE_P(, SelectiveRun,
                         testing::Values(StepProviders{{"reference"}, "naive"}, StepProviders{{"aten"}, "sdpa"},
                                         StepProviders{{"fused", "aten"}, "interval"},
                                         StepProviders{{"fused", "reference"}, "naive"},
                                         StepProviders{{"aten"}, "sdpa", Dtype::bf16},
                                         StepProviders{{"fused", "aten"}, "sdpa", Dtype::bf16},
                                         StepProviders{{"reference"}, "naive", Dtype::bf16}));

}  // namespace
}  // namespace chassis
