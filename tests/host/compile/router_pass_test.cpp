// The router pass adds ops and values to some blocks, and takes attributes away.
#include "host/compile/router_pass.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/compile/compile.hpp"
#include "host/compile/objective_pass.hpp"
#include "host/graph/op_table.hpp"
#include "host/graph/output_names.hpp"
#include "host/graph/rewrite.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::Recorder;
using test::StubProvider;

struct ModelSpec {
  OpAttrs router = {{kAuxWeightAttr, 0.25}};
  std::vector<bool> has_experts = {false, true, false, true};  // by layer
};

// Layers whose experts add nothing; only their routers matter here.
Program router_model(const ModelSpec& spec = {}) {
  return test::record([&](Recorder& r) {
    const DimId h = r.dim("hidden", 4), e = r.dim("experts", 5), k = r.dim("chosen", 2), v = r.dim("vocab", 11);
    const std::vector<DimId> stream = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h};
    const uint32_t embed = r.block("embed", [&] {
      r.output("hidden", r.op("embedding", "embed", {r.field("input_ids")}, {r.slot("embed", {{v}, {h}})}));
    });
    const auto layer = [&](const char* name, bool has_experts) {
      return r.block(name, [&] {
        ValueId x = r.input("hidden", stream);
        if (has_experts) {
          const ValueId logits = r.op("score", "router", {x}, {r.slot("router", {{e}, {h}})});
          const ValueId chosen = r.op("top_experts", "choice", {logits, r.field("document_ids")}, {}, spec.router, {k});
          const ValueId weights =
              r.op("expert_weights", "weights", {logits, chosen}, {}, {{"score", std::string("softmax")}});
          x = r.op("combine", "sum", {r.op("dispatch", "rows", {x, chosen}), chosen, weights});
        }
        r.output("hidden", x);
      });
    };
    const uint32_t dense = layer("dense", false), experts = layer("experts", true);
    const uint32_t head = r.block("head", [&] {
      r.output("logits", r.op("linear", "head", {r.input("hidden", stream)}, {r.slot("head", {{v}, {h}})}, {}, {v}));
    });
    r.chain("embed", "embed", {embed});
    std::vector<uint32_t> layers;
    for (const bool has : spec.has_experts) layers.push_back(has ? experts : dense);
    r.chain("layers", "layers.{i}", layers);
    r.chain("head", "head", {head});
  });
}

Program rewritten(const ModelSpec& spec, const RouterRequest& request, std::string* report = nullptr) {
  Program program = router_model(spec);
  add_objective(program, {});
  const std::string what = add_router_losses(program, request);
  check_rewritten(program, "the router pass");
  if (report != nullptr) *report = what;
  return program;
}

std::string ops_of(const BlockType& block) {
  std::string text;
  for (const Op& op : block.ops) text += (text.empty() ? "" : " ") + op.id.text();
  return text;
}
const BlockType& layer_of(const Program& program, size_t i) { return program.blocks[program.chains[1].blocks[i]]; }
bool passes_on(const BlockType& block) { return block.outputs.contains(kRouterBalance); }
bool takes(const BlockType& block) { return block.inputs.contains(kRouterBalance); }

TEST(RouterPass, TakesTheAttributesThatProvidersDoNotSee) {
  const Program program = rewritten({}, {});
  for (const Op& op : layer_of(program, 1).ops) EXPECT_TRUE(op.attr(kAuxWeightAttr) == nullptr);
  EXPECT_EQ(ops_of(layer_of(program, 1)), "score top_experts expert_weights dispatch combine");
}

TEST(RouterPass, MeasuresWithoutALoss) {
  std::string report;
  const Program program = rewritten({}, {.measures = true}, &report);
  EXPECT_EQ(report, "measures the loads of 2 routers; their losses are off: model.router_aux_weight turns one on");
  EXPECT_EQ(ops_of(layer_of(program, 1)), "score top_experts router_stats expert_weights dispatch combine");
  EXPECT_TRUE(layer_of(program, 1).ops[2].is_detached);
  EXPECT_EQ(layer_of(program, 1).outputs.count(kRouterSumsOutput), 1u);
  EXPECT_EQ(&layer_of(program, 0), &layer_of(program, 2));
  EXPECT_FALSE(passes_on(layer_of(program, 1)));
}

// The sums of all layers reach the head through the blocks between them, not those before the first router.
TEST(RouterPass, PassesTheSumsOfAllLayersToTheLastBlock) {
  std::string report;
  const Program program = rewritten({}, {.measures = true, .aux_weight = std::nullopt}, &report);
  EXPECT_EQ(report,
            "measures the loads of 2 routers, and adds their auxiliary loss (layers; 2 if all loads are equal) with "
            "weight 0.25, and their z-loss with weight 0");
  EXPECT_FALSE(takes(layer_of(program, 0)) || passes_on(layer_of(program, 0)));
  EXPECT_FALSE(takes(layer_of(program, 1)));
  EXPECT_TRUE(passes_on(layer_of(program, 1)));
  EXPECT_TRUE(takes(layer_of(program, 2)) && passes_on(layer_of(program, 2)));
  EXPECT_TRUE(takes(layer_of(program, 3)) && passes_on(layer_of(program, 3)));
  EXPECT_EQ(ops_of(layer_of(program, 1)), "score top_experts router_stats expert_weights dispatch combine");
  EXPECT_EQ(ops_of(layer_of(program, 3)), "score top_experts router_stats add expert_weights dispatch combine");
  const BlockType& head = *program.last_block();
  EXPECT_TRUE(takes(head));
  EXPECT_FALSE(passes_on(head));
  EXPECT_EQ(ops_of(head), "linear cross_entropy load_balance add");
  EXPECT_TRUE(head.ops.back().is_training_term);
  EXPECT_EQ(head.outputs.at(kLossOutput), head.ops.back().outputs[0]);
}

// The loss of DeepSeek is one of each layer, so the running value is a scalar.
TEST(RouterPass, AddsUpLossesOfLayers) {
  ModelSpec spec;
  spec.router.emplace_back(kBalanceAttr, std::string("sequence"));
  const Program program = rewritten(spec, {.aux_weight = std::nullopt, .z_weight = 0.5});
  EXPECT_EQ(ops_of(layer_of(program, 3)),
            "score top_experts router_stats load_balance add expert_weights dispatch combine");
  EXPECT_EQ(ops_of(*program.last_block()), "linear cross_entropy add");
  const Op& loss = layer_of(program, 3).ops[3];
  EXPECT_EQ(std::get<double>(*loss.attr("z_weight")), 0.25) << "a mean over two layers";
  EXPECT_EQ(loss.attr_int("chosen", 0), 2);
}

TEST(RouterPass, TheRequestReplacesTheWeightOfTheModel) {
  const Program off = rewritten({}, {.aux_weight = 0.0});
  EXPECT_EQ(ops_of(*off.last_block()), "linear cross_entropy");
  const Program other = rewritten({}, {.aux_weight = 0.75});
  EXPECT_EQ(std::get<double>(*other.last_block()->ops[2].attr(kAuxWeightAttr)), 0.75);
}

TEST(RouterPass, RefusesALossThatCannotBe) {
  ModelSpec dense;
  dense.has_experts = {false};
  EXPECT_HAS(test::refusal([&] { rewritten(dense, {.aux_weight = 0.1}); }), "the model has no experts");
  EXPECT_EQ(test::refusal([&] { rewritten(dense, {.measures = true, .aux_weight = std::nullopt}); }), "");
  Program scored = router_model();
  add_objective(scored, {.output = ObjectiveOutput::kTokenLogps});
  EXPECT_HAS(test::refusal([&] { add_router_losses(scored, {.aux_weight = 0.1}); }),
             "which is added to the cross entropy of tokens, and this objective has none");
}

// Evaluation minimises nothing: its loss is the cross entropy, and no block passes sums on.
TEST(RouterPass, OnlyTrainingHasTheLoss) {
  std::vector<std::string> ops = StubProvider::every_op();
  for (const char* id :
       {"score", "top_experts", "expert_weights", "dispatch", "combine", "router_stats", "load_balance"})
    ops.emplace_back(id);
  StubProvider all("all", ops);
  const CompiledProgram compiled =
      compile(router_model(), {.routers = {.measures = true, .aux_weight = std::nullopt},
                               .resolve = {.batch = 2, .time = 3, .kernels = {all.provider()}}});
  const auto has = [&](Purpose purpose, const char* id) {
    return std::ranges::any_of(compiled.resolved(purpose).units, [&](const auto& unit) {
      return std::ranges::any_of(unit->block.ops, [&](const Op& op) { return op.id.text() == id; });
    });
  };
  for (const char* id : {"router_stats", "load_balance"}) {
    EXPECT_TRUE(has(Purpose::kTraining, id)) << id;
    EXPECT_FALSE(has(Purpose::kLoss, id)) << id;
    EXPECT_FALSE(has(Purpose::kLogits, id)) << id;
  }
  for (const auto& unit : compiled.resolved(Purpose::kLoss).units) EXPECT_FALSE(takes(unit->block));
}

}  // namespace
}  // namespace chassis
