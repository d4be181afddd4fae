// The losses that balance experts, and the loads in metrics: the numbers of one process under every strategy, those of
// the formula, and what is refused. Micro-batches of one row are the same on any number of ranks, so their losses are.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

constexpr unsigned kPlain = 0b000000, kRecomputes = 0b001000, kAccumulates = 0b010000;
constexpr const char* kWeights = "router_aux_weight = 0.05\nrouter_z_weight = 0.01\n";

SmallFamily family(const std::string& name) {
  for (const SmallFamily& family : small_families())
    if (family.name == name) return family;
  throw std::runtime_error("no family " + name);
}
std::string balanced(const std::string& name) { return family(name).model + kWeights; }

const std::vector<Strategy> kStrategies = {
    {"ddp", {"plugin = \"ddp\""}, no_mesh},
    {"fsdp2", {"plugin = \"fsdp2\""}, no_mesh},
    {"tp", {"plugin = \"tensor\""}, no_mesh, 2},
    {"tp_sequence", {"plugin = \"tensor\"", "sequence_parallel = true"}, no_mesh, 2},
    {"cp_gather", {"plugin = \"context\"", "mode = \"gather\""}, no_mesh, 2},
    {"cp", {"plugin = \"context\""}, no_mesh, 2},
    {"pp", {"plugin = \"pipeline\"", "schedule = \"1f1b\""}, no_mesh, 2},
    {"pp_split", {"plugin = \"pipeline\"", "schedule = \"zb_h1\""}, no_mesh, 2},
};

// All of them sum what one process sums, in another order.
void expect_the_loads(const nlohmann::json& ours, const nlohmann::json& alone) {
  size_t num_loads = 0;
  for (const auto& [name, value] : alone.items()) {
    if (name.rfind("router/", 0) != 0) continue;
    ++num_loads;
    ASSERT_TRUE(ours.contains(name)) << name;
    EXPECT_NEAR(ours.at(name).get<double>(), value.get<double>(), 1e-5 * std::max(1.0, std::abs(value.get<double>())))
        << name;
  }
  EXPECT_GT(num_loads, 0u);
}

class BalanceLoss : public testing::TestWithParam<std::string> {};
TEST_P(BalanceLoss, GivesTheNumbersOfOneProcess) {
  ParallelRun run(Variant::of_bits(kAccumulates), balanced(GetParam()));
  const Result alone = run(nullptr, 1);
  const nlohmann::json loads = run.first_record();
  for (const Strategy& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name);
    expect_the_numbers(run(&strategy, 2), alone, false, std::string(strategy.name) + " of " + GetParam());
    expect_the_loads(run.first_record(), loads);
  }
}
// One loss of all layers, also where a dense layer passes it on; and one of each layer and row.
INSTANTIATE_TEST_SUITE_P(Some, BalanceLoss, testing::Values("qwen3_moe", "deepseek_v2"),
                         [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Others, BalanceLoss, testing::Values("mixtral", "qwen2_moe", "olmoe", "llama4"),
                         [](const auto& info) { return info.param; });

// Ranks that compute the same rows share a micro-batch of several.
TEST(BalanceLossOfSeveralRows, GivesTheNumbersOfOneProcess) {
  ParallelRun run(Variant::of_bits(kPlain), balanced("mixtral"));
  const Result alone = run(nullptr, 1);
  for (const Strategy& strategy : kStrategies)
    if (strategy.tensor_ways == 2) expect_the_numbers(run(&strategy, 2), alone, false, strategy.name);
}

TEST(BalanceLoss, IsTheSameWithRecomputation) {
  ParallelRun kept(Variant::of_bits(kPlain), balanced("mixtral")),
      again(Variant::of_bits(kRecomputes), balanced("mixtral"));
  const Result a = kept(nullptr, 1), b = again(nullptr, 1), c = kept(nullptr, 1, {"recompute.mode=selective"});
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  EXPECT_EQ(a.losses, c.losses);
  EXPECT_EQ(a.grad_norms, c.grad_norms);
}

// The model has one layer with experts, so the metric of this layer is the loss of all.
TEST(BalanceLoss, AddsItsWeightTimesTheMetricToTheLossOfTraining) {
  ParallelRun run(Variant::of_bits(kPlain), family("qwen3_moe").model);
  const Result off = run(nullptr, 1);
  const nlohmann::json record = run.first_record();
  const double aux = record.at("router/layers.1/aux");
  EXPECT_GE(aux, 1.9) << "two experts of a token, if all loads are equal";
  EXPECT_GE(record.at("router/layers.1/max_load"), 1.0);
  EXPECT_LE(record.at("router/layers.1/entropy"), std::log(6.0));
  EXPECT_FALSE(record.contains("router/layers.0/aux")) << "a dense layer";

  const Result on = run(nullptr, 1, {"model.router_aux_weight=0.5"});
  EXPECT_NEAR(on.losses[0] - off.losses[0], 0.5 * aux, 1e-5);
  EXPECT_NE(on.grad_norms[0], off.grad_norms[0]);
  const Result zero = run(nullptr, 1, {"model.router_aux_weight=0"});
  EXPECT_EQ(zero.losses, off.losses);
  EXPECT_EQ(zero.grad_norms, off.grad_norms);
}

TEST(BalanceLoss, HasTheWeightOfTheFileIfTheFileAsksForIt) {
  const auto with = [](const std::string& more) {
    std::string model = family("mixtral").model;
    return model.replace(model.rfind(" }"), 2, more + " }");
  };
  ParallelRun off(Variant::of_bits(kPlain), with("")),
      silent(Variant::of_bits(kPlain), with(", router_aux_loss_coef = 0.3")),
      asked(Variant::of_bits(kPlain), with(", router_aux_loss_coef = 0.3, output_router_logits = true"));
  const Result plain = off(nullptr, 1);
  EXPECT_EQ(silent(nullptr, 1).losses, plain.losses);
  const Result by_file = asked(nullptr, 1), by_key = off(nullptr, 1, {"model.router_aux_weight=0.3"});
  EXPECT_EQ(by_file.losses, by_key.losses);
  EXPECT_NE(by_file.losses, plain.losses);
  EXPECT_EQ(asked(nullptr, 1, {"model.router_aux_weight=0"}).losses, plain.losses);
}

TEST(BalanceLoss, EvensLoads) {
  ParallelRun run(Variant::of_bits(kPlain), family("mixtral").model);
  const std::vector<std::string> last = {"run.max_steps=40", "log.every_steps=40"};
  const auto load_after = [&](const char* weight) {
    std::vector<std::string> overrides = last;
    overrides.push_back(std::string("model.router_aux_weight=") + weight);
    run(nullptr, 1, overrides);
    return run.last_training_record().at("router/layers.2/max_load").get<double>();
  };
  EXPECT_LT(load_after("1.0"), load_after("0"));
}

TEST(BalanceLoss, IsRefusedForAModelWithoutExperts) {
  ParallelRun run(Variant::of_bits(kPlain));
  EXPECT_HAS(refusal_of(run, {"one", {"plugin = \"ddp\""}, no_mesh}, 2, {"model.router_aux_weight=0.1"}),
             "the model has no experts, so its routers cannot have a loss");
}

}  // namespace
}  // namespace chassis::test
