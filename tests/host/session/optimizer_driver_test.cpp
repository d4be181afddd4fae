// The driver of an optimizer plugin: gradient norm, states, weight decay, steps.
#include "host/session/optimizer_driver.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/one_rank.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;
using test::LoadedPlugins;
using test::SmallModel;

class OptimizerDriverTest : public testing::Test {
 protected:
  OptimizerSchema schema(double weight_decay, const std::string& plugin = "adamw") {
    return OptimizerSchema(plugins_.make("optimizer", plugin), run_.parameters, weight_decay);
  }
  // Ends the driver before it.
  OptimizerDriver& driver(double weight_decay, const std::string& plugin = "adamw") {
    return allocate(schema(weight_decay, plugin));
  }
  OptimizerDriver& allocate(OptimizerSchema asked) {
    driver_.reset();
    placed_ = std::make_unique<PlacedOptimizer>(std::move(asked));
    driver_ = std::make_unique<OptimizerDriver>(*placed_, Device{}, alone_);
    return *driver_;
  }
  LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  CpuRun run_{SmallModel{}.program(), {plugins_.ops("reference")}};
  test::AloneCommunicator alone_;
  std::unique_ptr<PlacedOptimizer> placed_;
  std::unique_ptr<OptimizerDriver> driver_;
};

TEST_F(OptimizerDriverTest, NormIsThatOfAllGradientsAsOneVector) {
  run_.step({fields_of(kIds, 2)});
  double sum = 0.0;
  std::vector<Parameter*> all;
  for (const auto& p : run_.parameters.all()) {
    all.push_back(p.get());
    for (float g : test::values_of(p->gradient)) sum += static_cast<double>(g) * g;
  }
  EXPECT_NEAR(std::sqrt(sum_of_squares(all)), std::sqrt(sum), 1e-9);
  run_.parameters.start_step();
  EXPECT_EQ(sum_of_squares(all), 0.0) << "gradients of the last step count as zero";
}

TEST_F(OptimizerDriverTest, AsksForStatesOfTrainedParametersOnly) {
  for (const auto& p : run_.parameters.all()) p->trainable = p->name.rfind("layers.1", 0) == 0;
  PlacedOptimizer placed(schema(0.1));
  EXPECT_EQ(placed.schema().parameters().size(), 4u);
  EXPECT_EQ(placed.states().size(), 8u);
  EXPECT_EQ(placed.states()[0].descriptor.fqn, "layers.1.norm.weight.exp_avg");
  EXPECT_FALSE(placed.states()[0].tensor);
  const OptimizerDriver optimizer(placed, {}, alone_);
  EXPECT_EQ(optimizer.trained().size(), 4u);
  for (const OptimizerState& state : placed.states()) {
    EXPECT_EQ(state.tensor.sizes(), state.parameter->local_shape);
    EXPECT_EQ(state.tensor.sum_of_squares(), 0.0);
  }
}

TEST_F(OptimizerDriverTest, StatesHaveTensorsAsLongAsTheirDriver) {
  PlacedOptimizer placed(schema(0.1));
  for (int i = 0; i < 2; ++i) {
    const OptimizerDriver optimizer(placed, {}, alone_);
    for (const OptimizerState& state : placed.states()) EXPECT_TRUE(state.tensor);
  }
  for (const OptimizerState& state : placed.states()) EXPECT_FALSE(state.tensor);
}

TEST_F(OptimizerDriverTest, RefusesAStateWhoseParameterContradictsItsDescriptor) {
  run_.storage.reset();
  run_.parameters.place(MeshShape({{"dp_shard", 2}}), 0);
  run_.storage.emplace(run_.parameters, Device{});
  run_.parameters.find("embed.weight")->descriptor.placements.push_back(Placement::dim_chunk({"dp_shard"}, 0));
  PlacedOptimizer placed(schema(0.1));
  const std::string refusal = test::refusal([&] { OptimizerDriver(placed, {}, alone_); });
  EXPECT_HAS(refusal, "state 'embed.weight.exp_avg' is [");
  EXPECT_HAS(refusal, "] on rank 0 as its parameter is; its descriptor says [");
}

TEST_F(OptimizerDriverTest, AnOptimizerRefusesDevicesThatItCannotStepOn) {
  const auto muon = plugins_.make("optimizer", "muon"), adamw = plugins_.make("optimizer", "adamw");
  const Device gpu{static_cast<Device::Type>(CHASSIS_DEVICE_CUDA), 0};
  EXPECT_HAS(test::refusal([&] { OptimizerPlugin(*muon).require_support(gpu); }), "muon steps on the CPU only");
  EXPECT_EQ(test::refusal([&] { OptimizerPlugin(*muon).require_support({}); }), "");
  EXPECT_EQ(test::refusal([&] { OptimizerPlugin(*adamw).require_support(gpu); }), "");
}

TEST_F(OptimizerDriverTest, DecaySparesParametersOfOneDimension) {
  OptimizerDriver& optimizer = driver(0.5);
  std::map<std::string, std::vector<float>> before;
  for (const auto& p : run_.parameters.all()) {
    p->value.fill(2.0);
    before[p->name] = test::values_of(p->value);
  }
  run_.parameters.start_step();
  optimizer.step(1, 0.1, 1.0);  // gradients are zero: decay alone moves a weight
  for (const auto& p : run_.parameters.all()) {
    const float expected = p->local_shape.size() > 1 ? 2.0f * (1.0f - 0.1f * 0.5f) : 2.0f;
    for (float value : test::values_of(p->value)) EXPECT_NEAR(value, expected, 1e-6) << p->name;
  }
}

// As LoRA+ requires: a parameter with a factor moves as if the whole run had that factor of the learning rate.
TEST_F(OptimizerDriverTest, AFactorOfTheLearningRateReachesThePlugin) {
  constexpr double kLr = 0.125;
  const auto moved = [&](const std::string& plugin, double lr, double scale) {
    std::map<std::string, std::vector<float>> out;
    for (const auto& p : run_.parameters.all()) {
      p->lr_scale = p->name == "embed.weight" ? scale : 1.0;
      p->shard.fill(2.0);
    }
    OptimizerDriver& optimizer = driver(0.5, plugin);
    run_.parameters.start_step();
    run_.step({fields_of(kIds, 2)});
    optimizer.step(1, lr, 1.0);
    for (const auto& p : run_.parameters.all()) out[p->name] = test::values_of(p->shard);
    return out;
  };
  for (const std::string plugin : {"adamw", "sgd"}) {
    SCOPED_TRACE(plugin);
    auto plain = moved(plugin, kLr, 1.0), faster = moved(plugin, 16 * kLr, 1.0), scaled = moved(plugin, kLr, 16.0);
    EXPECT_NE(plain["embed.weight"], faster["embed.weight"]);
    for (const auto& [name, values] : scaled)
      EXPECT_EQ(values, name == "embed.weight" ? faster[name] : plain[name]) << name;
  }
}

TEST_F(OptimizerDriverTest, AParameterWithoutAGradientDoesNotMove) {
  OptimizerDriver& optimizer = driver(0.0);
  run_.step({fields_of(kIds, 2)});
  run_.parameters.find("embed.weight")->gradient_written = false;
  const auto before = test::values_of(run_.parameters.find("embed.weight")->value);
  const auto head = test::values_of(run_.parameters.find("lm_head.weight")->value);
  optimizer.step(1, 0.1, 1.0);
  EXPECT_EQ(test::values_of(run_.parameters.find("embed.weight")->value), before);
  EXPECT_NE(test::values_of(run_.parameters.find("lm_head.weight")->value), head);
}

TEST_F(OptimizerDriverTest, StatesDifferBetweenParametersAndStartAtTheirValues) {
  OptimizerDriver& optimizer = driver(0.0, "choosing");
  std::map<std::string, std::string> states;
  for (const OptimizerState& state : optimizer.states())
    states[state.descriptor.fqn] = std::string(dtype_name(state.descriptor.dtype)) + text(Shape(state.tensor.sizes())) +
                                   " " + std::to_string(static_cast<int>(state.tensor.flat().narrow(0, 0, 1).item()));
  EXPECT_EQ(states.size(), 2u + 2 + 2 * (2 + 1 + 2 + 1)) << "embedding, head, and norm, up, bias, down of each layer";
  EXPECT_EQ(states["embed.weight.code"], "u8[11, 4] 127");
  EXPECT_EQ(states["embed.weight.absmax"], "f32[11] 0");
  EXPECT_EQ(states["layers.1.up.weight.momentum"], "f32[6, 4] 0");
  EXPECT_EQ(states["layers.1.up.bias.second"], "f32[6] 0");
  EXPECT_EQ(states["lm_head.weight.first"], "f32[11, 4] 0");
  using Kind = Granularity::Kind;
  EXPECT_EQ(run_.parameters.find("embed.weight")->descriptor.granularity, Granularity::block_of(4));
  EXPECT_EQ(run_.parameters.find("layers.0.up.weight")->descriptor.granularity.kind, Kind::kMatrix);
  EXPECT_EQ(run_.parameters.find("lm_head.weight")->descriptor.granularity.kind, Kind::kElement);
  placed_->schema().try_step(0.1);
}

TEST_F(OptimizerDriverTest, AStepSaysWhichElementsTheRankHas) {
  OptimizerSchema choosing = schema(0.0, "choosing");
  run_.storage.reset();
  run_.parameters.place(MeshShape({{"dp_shard", 2}}), 1);
  run_.storage.emplace(run_.parameters, Device{});
  Parameter* embed = run_.parameters.find("embed.weight");
  embed->descriptor.placements.push_back(Placement::flat_range({"dp_shard"}));
  const int64_t count = numel(Shape{11, 4}) - 24;  // 6 of 11 blocks are on rank 0
  embed->shard = Tensor::zeros(std::vector<int64_t>{24}, Dtype::f32);
  OptimizerDriver& optimizer = allocate(std::move(choosing));
  run_.parameters.start_step();
  optimizer.step(1, 0.1, 1.0);
  const std::vector<float> values = test::values_of(embed->shard);
  for (size_t e = 0; e < values.size(); ++e)
    EXPECT_EQ(values[e], static_cast<int64_t>(e) < count ? static_cast<float>(24 + e) : 0.0f) << e;
}

}  // namespace
}  // namespace chassis
