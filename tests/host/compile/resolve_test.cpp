// The choice of a provider for each node, and the report if there is none.
#include "host/compile/resolve.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "host/compile/parameters.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::SmallModel;
using test::StubNode;
using test::StubProvider;
using Lines = std::vector<std::string>;

struct Resolution {
  explicit Resolution(std::vector<OpsProvider> kernels, Purpose purpose = Purpose::kTraining) {
    options.kernels = std::move(kernels);
    options.purpose = purpose;
    options.batch = 2;
    options.time = 3;
  }
  ResolvedProgram operator()() const { return resolve_program(program, layout, parameters, options); }
  std::string refusal() const {
    return test::refusal([&] { (*this)(); });
  }
  static Lines providers(const ResolvedBlock& block) {
    Lines names;
    for (const Node& node : block.nodes) names.push_back(node.pattern + " " + node.provider->name);
    return names;
  }

  Program program = SmallModel{}.program();
  ProgramLayout layout;
  ParameterTable parameters{program, layout};
  ResolveOptions options;
};

TEST(Resolve, TheFirstProviderThatClaimsGetsTheNode) {
  StubProvider picky("picky", {"linear", "activation"}), all("all");
  picky.refuse = [](const StubNode& node) { return node.params.size() > 1 ? "has no bias" : std::string(); };
  const Resolution resolve({picky.provider(), all.provider()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(Resolution::providers(*program.units[1]),
            (Lines{"rms_norm all", "linear all", "activation picky", "linear picky", "add all"}));
  const Node& up = program.units[1]->nodes[1];
  ASSERT_EQ(up.refusals.size(), 1u);
  EXPECT_EQ(up.refusals[0].provider + " " + up.refusals[0].pattern + " " + up.refusals[0].reason,
            "picky linear has no bias");
}

TEST(Resolve, LongerPatternsComeFirst) {
  StubProvider fused("fused", {"linear", "linear+activation", "linear+activation+linear"}), all("all");
  const Resolution resolve({fused.provider(), all.provider()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(Resolution::providers(*program.units[1]),
            (Lines{"rms_norm all", "linear+activation+linear fused", "add all"}));
  const Node& node = program.units[1]->nodes[1];
  EXPECT_EQ(node.inputs.size(), 1u);
  EXPECT_EQ(node.params.size(), 3u);
  EXPECT_EQ(node.outputs.size(), 1u);  // no op outside the node reads the values inside it
  EXPECT_EQ(node.name, "layer.up+gelu+down");
}

TEST(Resolve, ARefusedPatternFallsBackToAShorterOne) {
  StubProvider fused("fused", {"linear+activation+linear", "linear+activation", "linear"}), all("all");
  fused.refuse = [](const StubNode& node) {
    return node.pattern == "linear+activation+linear" ? "gelu in between" : std::string();
  };
  const Resolution resolve({fused.provider(), all.provider()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(Resolution::providers(*program.units[1]),
            (Lines{"rms_norm all", "linear+activation fused", "linear fused", "add all"}));
}

TEST(Resolve, AProviderThatDoesNotWriteAnInnerValueIsPassedOver) {
  StubProvider fused("fused", {"rms_norm+linear"}), all("all");
  for (const bool writes : {true, false}) {
    fused.writes_inner = writes;
    Resolution resolve({fused.provider(), all.provider()});
    BlockType& layer = resolve.program.blocks[1];
    layer.ops.back().inputs[0] = layer.ops.front().outputs[0];  // the residual branch reads the norm, too
    const ResolvedProgram program = resolve();
    const Node& first = program.units[1]->nodes.front();
    EXPECT_EQ(first.pattern + " " + first.provider->name, writes ? "rms_norm+linear fused" : "rms_norm all");
    if (writes) continue;
    ASSERT_EQ(first.refusals.size(), 1u);
    EXPECT_HAS(first.refusals.front().reason, "does not write '");
    EXPECT_HAS(first.refusals.front().reason, "', which is also read elsewhere");
  }
}

TEST(Resolve, OpsThatDoNotFeedEachOtherMatchNoPattern) {
  StubProvider fused("fused", {"add+linear"}), all("all");  // the head's linear does not read this block's add
  const Resolution resolve({fused.provider(), all.provider()});
  const ResolvedProgram program = resolve();
  for (const auto& unit : program.units)
    for (const Node& node : unit->nodes) EXPECT_EQ(node.provider->name, "all");
}

// "rms_norm cheap(1) expensive(2)": all providers that claim the node, the chosen one first.
Lines candidates(const ResolvedBlock& block) {
  Lines lines;
  for (const Node& node : block.nodes) {
    std::string line = node.pattern;
    for (const Candidate& candidate : node.candidates)
      line += fmt::format(" {}({})", candidate.provider, candidate.cost_ns);
    lines.push_back(line);
  }
  return lines;
}

TEST(Resolve, TheCheapestOfThoseThatCompeteGetsTheNode) {
  StubProvider expensive("a_expensive"), cheap("b_cheap", {"linear", "add"}), picky("c_picky", {"linear"});
  expensive.cost = [](const StubNode&) { return 20.0; };
  cheap.cost = [](const StubNode& node) { return node.pattern == "add" ? 30.0 : 10.0; };
  picky.refuse = [](const StubNode&) { return "never"; };
  const Resolution resolve({expensive.candidate(), cheap.candidate(), picky.candidate()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(candidates(*program.units[1]),
            (Lines{"rms_norm a_expensive(20)", "linear b_cheap(10) a_expensive(20)", "activation a_expensive(20)",
                   "linear b_cheap(10) a_expensive(20)", "add a_expensive(20) b_cheap(30)"}));
  EXPECT_EQ(
      Resolution::providers(*program.units[1]),
      (Lines{"rms_norm a_expensive", "linear b_cheap", "activation a_expensive", "linear b_cheap", "add a_expensive"}));
  EXPECT_EQ(expensive.nodes.size(), 5u);  // in all blocks; only chosen nodes get kernels
  ASSERT_EQ(program.units[1]->nodes[1].refusals.size(), 1u);
  EXPECT_EQ(program.units[1]->nodes[1].refusals[0].provider, "c_picky");
}

TEST(Resolve, UnknownCostsComeLastAndNamesDecide) {
  StubProvider unknown("a"), second("c", {"linear"}), first("b", {"linear", "add"});
  unknown.cost = [](const StubNode&) { return 0.0; };
  first.cost = [](const StubNode& node) { return node.pattern == "add" ? -1.0 : 5.0; };
  second.cost = [](const StubNode&) { return 5.0; };
  const Resolution resolve({unknown.candidate(), second.candidate(), first.candidate()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(candidates(*program.units[1])[1], "linear b(5) c(5) a(0)");
  EXPECT_EQ(candidates(*program.units[1])[4], "add a(0) b(0)");
}

TEST(Resolve, TheLongestPatternComesBeforeTheCheapest) {
  StubProvider fused("fused", {"linear+activation"}), all("all");
  fused.cost = [](const StubNode&) { return 1e6; };
  const Resolution resolve({all.candidate(), fused.candidate()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(candidates(*program.units[1]),
            (Lines{"rms_norm all(1)", "linear+activation fused(1000000)", "linear all(1)", "add all(1)"}));
}

TEST(Resolve, NamedProvidersAreAskedBeforeAndAfterThoseThatCompete) {
  StubProvider named("named", {"add"}), cheap("cheap", {"add", "linear"}), last("last");
  named.cost = [](const StubNode&) { return 100.0; };
  const Resolution resolve({named.provider(), cheap.candidate(), last.provider()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(Resolution::providers(*program.units[1]),
            (Lines{"rms_norm last", "linear cheap", "activation last", "linear cheap", "add named"}));
  EXPECT_EQ(candidates(*program.units[1])[4], "add");
}

TEST(Resolve, EveryRefusalIsReported) {
  StubProvider a("first"), b("second");
  a.refuse = [](const StubNode& node) { return node.pattern == "activation" ? "gelu is not built in" : std::string(); };
  b.refuse = [](const StubNode& node) { return node.pattern == "activation" ? "needs CUDA" : std::string(); };
  const std::string error = Resolution({a.provider(), b.provider()}).refusal();
  EXPECT_HAS(error, "no provider computes activation 'layer.gelu'");
  EXPECT_HAS(error, "first (activation): gelu is not built in");
  EXPECT_HAS(error, "second (activation): needs CUDA");
  EXPECT_HAS(error, "[kernels]");
}

TEST(Resolve, AnOpThatNoProviderKnowsIsReported) {
  StubProvider a("first", {"embedding", "linear"});
  EXPECT_HAS(Resolution({a.provider()}).refusal(), ": none of the plugins in [kernels] offers rms_norm");
}

TEST(Resolve, SaysWhoRefusedAttentionAndWhatToSet) {
  test::LoadedPlugins plugins;
  const Program program = plugins.record_model("llama", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 16,
      "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 13})");
  const ProgramLayout layout;
  const ParameterTable parameters(program, layout);
  Lines other_ops = StubProvider::every_op();
  std::erase(other_ops, "attention");
  StubProvider picky("picky", {"attention"}), other("other", {"linear"}), kernels("kernels", other_ops);
  picky.refuse = [](const StubNode&) { return "head_dim 4 is too small"; };
  const auto refusal = [&](OpsProvider attention, OpsProvider kernels) {
    ResolveOptions options;
    options.attention = {std::move(attention)};
    options.kernels = {std::move(kernels)};
    return test::refusal([&] { resolve_program(program, layout, parameters, options); });
  };
  const std::string by_name = refusal(picky.provider(), kernels.candidate());
  EXPECT_HAS(by_name,
             "no provider computes attention 'layer.attention'\n  picky (attention): head_dim 4 is too small"
             "\n  [kernels], which is asked next: \"auto\" there compares no providers of attention\n"
             "hint: set attention.plugin = \"auto\", or name a plugin there that claims it; ");
  EXPECT_HAS(refusal(other.provider(), kernels.provider()),
             "'\n  other: named in [attention], but does not offer attention"
             "\n  [kernels], which is asked next: no plugin there offers attention\n");
  EXPECT_HAS(refusal(picky.candidate(), kernels.provider()),
             "\nhint: name a plugin that claims it in attention.plugin; `chassis plugins list`");
}

TEST(Resolve, AnErrorOfAClaimIsNotARefusal) {
  StubProvider bad("bad");
  bad.table().claim = [](chassis_instance*, const chassis_node_t*, double*) {
    return make_status(CHASSIS_INTERNAL, "claim failed");
  };
  EXPECT_HAS(Resolution({bad.provider()}).refusal(), "provider 'bad' on embed.embedding in claim: claim failed");
}

TEST(Resolve, LogitsDropWhatOnlyTheLossReads) {
  StubProvider all("all");
  const Resolution resolve_logits({all.provider()}, Purpose::kLogits);
  const ResolvedProgram logits = resolve_logits();
  EXPECT_EQ(Resolution::providers(*logits.units.back()), (Lines{"linear all"}));
  EXPECT_FALSE(logits.units.back()->block.fields.count("labels"));
}

TEST(Resolve, UnitsOfOneKindShareOneBlock) {
  StubProvider all("all");
  const Resolution resolve({all.provider()});
  const ResolvedProgram program = resolve();
  EXPECT_EQ(program.units[1], program.units[2]);
  EXPECT_EQ(all.nodes.size(), 1u + 5u + 2u);
}

TEST(Resolve, KernelsAreDestroyedWithTheLastBlockThatUsesThem) {
  StubProvider all("all");
  Resolution({all.provider()})();
  EXPECT_EQ(all.live_kernels, 0);
}

}  // namespace
}  // namespace chassis
