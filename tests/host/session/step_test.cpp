// One training step on one rank: its phases, schedule, results and memory.
#include "host/session/step.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "host/service/meta_memory.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/one_rank.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;

const char* text(StepPhase phase) {
  switch (phase) {
    case StepPhase::kForward:
      return "forward";
    case StepPhase::kBackward:
      return "backward";
    case StepPhase::kReduction:
      return "reduction";
    case StepPhase::kUpdate:
      return "update";
    case StepPhase::kEnd:
      return "end";
  }
  return "";
}

// A step of two micro-batches on one rank.
class StepTest : public testing::Test {
 protected:
  void SetUp() override { make({}); }

  void make(Device device) {
    if (device.type == Device::Type::kMeta) {
      run_.storage.emplace(run_.parameters, device);
      run_.rehearse_on(device);
    }
    driver_.reset();
    driver_ = std::make_unique<OptimizerDriver>(optimizer_, device, alone_);
    rank_ = std::make_unique<test::OneRank>(run_.compiled.program(), run_.parameters, device);
    device_ = device;
    inputs_.schedule = sequential_schedule(2);
    inputs_.fields = [device](int) {
      Fields fields;
      for (const auto& [name, field] : fields_of(kIds, 2)) fields[name] = field.to(device);
      return fields;
    };
    inputs_.loss_scale = 0.25;
    inputs_.lr = 0.5;
    inputs_.observer = [this](StepPhase phase, int microbatch) {
      phases_.push_back(text(phase));
      if (phase <= StepPhase::kBackward) phases_.back() += " " + std::to_string(microbatch);
    };
    inputs_.before_update = [this] { phases_.push_back("before the update"); };
  }
  StepResult step() {
    phases_.clear();
    return run_step({*run_.executor, run_.parameters, *driver_, rank_->ranks(), device_}, inputs_);
  }
  std::map<std::string, std::vector<float>> weights() const {
    std::map<std::string, std::vector<float>> all;
    for (const auto& p : run_.parameters.all()) all[p->name] = test::values_of(p->value);
    return all;
  }

  const std::vector<std::string> whole_step_ = {"forward 0", "backward 0",        "forward 1", "backward 1",
                                                "reduction", "before the update", "update",    "end"};
  test::LoadedPlugins plugins_;
  CpuRun run_{test::SmallModel{}.program(), {plugins_.ops("reference")}};
  test::AloneCommunicator alone_;
  PlacedOptimizer optimizer_{OptimizerSchema(plugins_.make("optimizer", "sgd"), run_.parameters, 0.0)};
  std::unique_ptr<OptimizerDriver> driver_;
  std::unique_ptr<test::OneRank> rank_;
  Device device_;
  StepInputs inputs_;
  std::vector<std::string> phases_;
};

TEST_F(StepTest, ReportsEveryPhaseInOrder) {
  const auto before = weights();
  const StepResult result = step();
  EXPECT_EQ(phases_, whole_step_);
  EXPECT_TRUE(result.applied);
  EXPECT_GT(result.loss, 0.0);
  EXPECT_GT(result.grad_norm, 0.0);
  EXPECT_NE(weights(), before);
}

TEST_F(StepTest, FollowsTheScheduleThatItIsGiven) {
  const StepResult sequential = step();
  run_.parameters.initialize(7);
  using Kind = Work::Kind;
  inputs_.schedule = {{Kind::kForward, 0, 0}, {Kind::kForward, 0, 1}, {Kind::kBackward, 0, 0}, {Kind::kBackward, 0, 1}};
  const StepResult pipelined = step();
  EXPECT_EQ(phases_[1], "forward 1");
  EXPECT_EQ(phases_[2], "backward 0");
  EXPECT_EQ(pipelined.loss, sequential.loss);
  EXPECT_EQ(pipelined.grad_norm, sequential.grad_norm);
}

TEST_F(StepTest, OfOneRankSendsNothingAndCopiesNothing) {
  for (int i = 0; i < 2; ++i) step();
  EXPECT_TRUE(rank_->ranks().communicator.take_counts().empty());
  EXPECT_EQ(rank_->ranks().events().shards().gathered_bytes(), 0u);
  for (const auto& p : run_.parameters.all()) {
    EXPECT_EQ(p->value.data(), p->shard.data()) << p->name;
    EXPECT_EQ(p->step_gradient().data(), p->gradient.data()) << p->name;
  }
}

TEST_F(StepTest, ChangesNothingIfTheLossIsNotFinite) {
  run_.parameters.find("layers.1.up.weight")->value.data_as<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> head = test::values_of(run_.parameters.find("lm_head.weight")->value);
  const StepResult result = step();
  EXPECT_FALSE(result.applied);
  EXPECT_TRUE(std::isnan(result.loss));
  EXPECT_EQ(phases_,
            (std::vector<std::string>{"forward 0", "backward 0", "forward 1", "backward 1", "reduction", "end"}));
  EXPECT_EQ(test::values_of(run_.parameters.find("lm_head.weight")->value), head);
}

TEST_F(StepTest, ReturnsTheRequestsOfAllRanks) {
  EXPECT_TRUE(step().requests.ready);
  inputs_.requests = [] { return StepRequests{.stop = true, .save = false, .ready = false}; };
  const StepRequests all = step().requests;
  EXPECT_TRUE(all.stop);
  EXPECT_FALSE(all.save);
  EXPECT_FALSE(all.ready);
}

TEST_F(StepTest, HasTheSamePhasesInARehearsal) {
  install_meta_allocator();
  make(kMetaHost);
  EXPECT_TRUE(step().applied);
  EXPECT_EQ(phases_, whole_step_);
  const uint64_t after_one = meta_memory_usage(kMetaHost).live_bytes;
  step();
  EXPECT_EQ(meta_memory_usage(kMetaHost).live_bytes, after_one) << "a step frees what it allocates";
}

}  // namespace
}  // namespace chassis
