// The passes together: their reports, purposes, and errors of recordings and rewrites.
#include "host/compile/compile.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "host/plugin/thread_role.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_passes.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::LowRankAdapter;
using test::QuantScheme;
using test::SmallModel;
using test::StubNode;
using test::StubProvider;
using test::TensorAxis;

ResolveOptions resolve_with(std::vector<OpsProvider> kernels) {
  return {.batch = 2, .time = 3, .kernels = std::move(kernels)};
}

TEST(Compile, EveryPassReportsThatItDidNothing) {
  StubProvider all("all");
  const CompiledProgram compiled = compile(SmallModel{}.program(), {.resolve = resolve_with({all.provider()})});
  EXPECT_EQ(text(compiled.reports(Purpose::kTraining)),
            "  record    4 units of 3 block types with 8 ops and 6 parameters\n"
            "  objective the program has a loss\n"
            "  routers   the program has no router\n"
            "  adapter   none is chosen\n"
            "  layout    no axis divides the computation\n"
            "  quant     none is chosen\n"
            "  providers all: computes 8 of 8 nodes\n"
            "  recompute none: 0 of 4 units run forward again\n"
            "  liveness  embed: 0 of 2 values live until backward, 0 outputs in place of an input\n"
            "  liveness  layer: 0 of 6 values live until backward, 0 outputs in place of an input\n"
            "  liveness  head: 0 of 4 values live until backward, 0 outputs in place of an input\n");
}

TEST(Compile, AProviderWithoutPatternsIsRefused) {
  StubProvider all("all"), empty("empty", {});
  try {
    compile(SmallModel{}.program(), {.resolve = resolve_with({empty.provider(), all.provider()})});
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "provider 'empty' offers 0 patterns, so it would compute nothing");
    EXPECT_HAS(error.hint_text(), "list the ops that it computes, such as \"linear\"");
  }
}

TEST(Compile, EveryPassReportsWhatItDidOrRefused) {
  StubProvider picky("picky", {"add", "stub/linear"}), all("all");
  picky.refuse = [](const StubNode& node) { return node.pattern == "add" ? "does not add" : std::string(); };
  picky.plan = [](const StubNode&, chassis_infer_t& out) { out.keeps_inputs = 1; };
  const LowRankAdapter adapter;
  const TensorAxis axis(2, {"ffn"});
  const QuantScheme scheme("stub4", "stub/linear", 4);
  const CompiledProgram compiled =
      compile(SmallModel{}.program(), {.passes = {.adapters = {&adapter}, .layout = {&axis}, .quant = {&scheme}},
                                       .resolve = resolve_with({picky.provider(), all.provider()}),
                                       .recompute = {1}});
  const std::string expected =
      "  record    4 units of 3 block types with 8 ops and 6 parameters\n"
      "  objective the program has a loss\n"
      "  routers   the program has no router\n"
      "  adapter   low-rank on layer.up: adds a branch of rank 4\n"
      "  adapter   low-rank on layer.down: adds a branch of rank 4\n"
      "  adapter   low-rank on head.lm_head: left: it is the head\n"
      "  layout    tp: divides 5 parameters by 2 and inserts 2 × all_reduce, 2 × copy\n"
      "  quant     stub4 on layer.up: stored as stub4, computed by stub/linear\n"
      "  quant     stub4 on layer.down: left: its 6 columns are no multiple of 4\n"
      "  providers picky: computes 2 of 25 nodes\n"
      "  providers all: computes 23 of 25 nodes\n"
      "  providers picky: refuses 6 × add: does not add\n"
      "  recompute full in the first block: 1 of 4 units runs forward again\n"
      "  liveness  embed: ";  // the layer is listed twice: the first needs no gradient of its input
  EXPECT_EQ(text(compiled.reports(Purpose::kTraining)).substr(0, expected.size()), expected);
}

TEST(Compile, FrozenParametersAreNotTrained) {
  StubProvider all("all");
  const CompiledProgram compiled = compile(SmallModel{}.program(), {.freeze =
                                                                        [](ParameterTable& parameters) {
                                                                          for (const auto& p : parameters.all())
                                                                            p->trainable = p->name == "lm_head.weight";
                                                                        },
                                                                    .resolve = resolve_with({all.provider()})});
  const ResolvedProgram& program = compiled.resolved(Purpose::kTraining);
  EXPECT_FALSE(program.units[1]->nodes.back().has_backward);
  EXPECT_TRUE(program.units[3]->nodes.back().has_backward);
}

TEST(Compile, AnAdapterFreezesTheRecordedParameters) {
  const LowRankAdapter adapter;
  const CompiledProgram compiled = compile(SmallModel{}.program(), {.passes = {.adapters = {&adapter}}});
  for (const auto& p : compiled.parameters().all())
    EXPECT_EQ(p->trainable, p->name.find("lora") != std::string::npos) << p->name;
}

TEST(Compile, CompileResolvesTheNamedPurposes) {
  StubProvider few("few", {"embedding"});
  EXPECT_HAS(test::refusal([&] {
               compile(SmallModel{}.program(),
                       {.resolve = resolve_with({few.provider()}), .purposes = {Purpose::kTraining}});
             }),
             "no provider computes rms_norm 'layer.norm'");
  EXPECT_EQ(test::refusal([&] { compile(SmallModel{}.program(), {.resolve = resolve_with({few.provider()})}); }), "");
}

TEST(Compile, APurposeThatWasRefusedIsRefusedAgain) {
  StubProvider few("few", {"embedding"});
  const CompiledProgram compiled = compile(SmallModel{}.program(), {.resolve = resolve_with({few.provider()})});
  for (int i = 0; i < 2; ++i)
    EXPECT_HAS(test::refusal([&] { compiled.resolved(Purpose::kLoss); }), "no provider computes rms_norm");
}

TEST(Compile, AnotherRecomputeIsAnotherProgramOfTheSameNodes) {
  StubProvider all("all");
  const CompiledProgram compiled =
      compile(SmallModel{}.program(), {.resolve = resolve_with({all.provider()}), .purposes = {Purpose::kTraining}});
  const ResolvedProgram& none = compiled.resolved(Purpose::kTraining);
  using enum BlockRecompute;
  EXPECT_EQ(none.recompute, (std::vector{kNone, kNone, kNone, kNone}));
  const size_t num_kernels = all.nodes.size();
  const CompiledProgram first = compiled.with_recompute({.full = 1});
  EXPECT_EQ(first.resolved(Purpose::kTraining).recompute, (std::vector{kNone, kFull, kNone, kNone}));
  const CompiledProgram selective = first.with_recompute(Recompute::kSelective);
  const ResolvedProgram& program = selective.resolved(Purpose::kTraining);
  EXPECT_EQ(program.recompute, (std::vector{kNone, kSelective, kSelective, kNone}));
  EXPECT_EQ(&program.running(1), &program.running(2)) << "units share what they run";
  EXPECT_NE(&program.running(1), program.units[1].get());
  const CompiledProgram full = compiled.with_recompute(Recompute::kFull);
  EXPECT_EQ(full.resolved(Purpose::kTraining).recompute, (std::vector{kNone, kFull, kFull, kNone}))
      << "chains of one block do not recompute";
  EXPECT_EQ(all.nodes.size(), num_kernels);
  for (const CompiledProgram& other : {first, selective, full}) {
    EXPECT_EQ(&other.program(), &compiled.program());
    EXPECT_EQ(&other.parameters(), &compiled.parameters());
    for (size_t unit = 0; unit < none.units.size(); ++unit)
      EXPECT_EQ(other.resolved(Purpose::kTraining).units[unit], none.units[unit]);
  }
  EXPECT_EQ(none.recompute, (std::vector{kNone, kNone, kNone, kNone})) << "the first program is what it was";
  EXPECT_EQ(compiled.recompute(), Recompute::kNone);
  EXPECT_EQ(&compiled.resolved(Purpose::kTraining), &none);
}

TEST(Compile, ACopyOutlivesTheProgramItWasMadeFrom) {
  StubProvider all("all");
  std::optional<CompiledProgram> compiled =
      compile(SmallModel{}.program(), {.resolve = resolve_with({all.provider()}), .purposes = {Purpose::kTraining}});
  const ResolvedProgram& program = compiled->resolved(Purpose::kTraining);
  const CompiledProgram copy = *compiled;
  compiled.reset();
  EXPECT_EQ(&copy.resolved(Purpose::kTraining), &program);
  EXPECT_EQ(program.units[1]->nodes.front().provider->name, "all");
}

TEST(Compile, ThreadsThatAskForAPurposeGetTheSameNodes) {
  StubProvider all("all");
  const CompiledProgram compiled = compile(SmallModel{}.program(), {.resolve = resolve_with({all.provider()})});
  EXPECT_TRUE(all.nodes.empty());
  const CompiledProgram other = compiled.with_recompute(Recompute::kFull);
  std::vector<const ResolvedBlock*> seen(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < seen.size(); ++i)
    threads.emplace_back([&, i] {
      const ThreadRoleScope role(ThreadRole::kStep);
      seen[i] = (i % 2 == 0 ? compiled : other).resolved(Purpose::kLoss).units[1].get();
    });
  for (std::thread& thread : threads) thread.join();
  for (const ResolvedBlock* block : seen) EXPECT_EQ(block, seen[0]);
  const size_t num_kernels = all.nodes.size();
  compiled.resolved(Purpose::kLoss);
  EXPECT_EQ(all.nodes.size(), num_kernels);
}

// Puts an op of the layer before the op whose output it reads.
class Reverse final : public RewritePass {
 public:
  std::string name() const override { return "reverse"; }
  void rewrite(Program& program, const Report&) const override {
    std::swap(program.blocks[1].ops.front(), program.blocks[1].ops.back());
  }
};

TEST(Compile, AnErrorNamesTheRewriteThatBreaksTheProgram) {
  const Reverse reverse;
  EXPECT_HAS(test::refusal([&] { compile(SmallModel{}.program(), {.passes = {.adapters = {&reverse}}}); }),
             "adapter 'reverse' leaves block 'layer' with add 'residual', which reads value");
}

TEST(Compile, AnErrorOfTheRecordingNamesItsKey) {
  const Recording recording{[](const chassis_builder_t*) { return make_status(CHASSIS_INTERNAL, "no such model"); },
                            {"run.toml", 3, 1},
                            "folder/config.json"};
  const std::string error = test::refusal([&] { compile(recording, {}); });
  EXPECT_HAS(error, "run.toml:3:1");
  EXPECT_HAS(error, "no such model");
  EXPECT_HAS(error, "folder/config.json");
}

}  // namespace
}  // namespace chassis
