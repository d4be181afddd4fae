// Steps of the trainer on one rank: clipping, accumulation, requests, steps that are not finite, another run state.
#include "host/train/trainer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "host/base/json.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/one_rank_state.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::LoadedPlugins;
using test::ScratchDirectory;
using test::SmallModel;

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      lines += "{\"input_ids\": [";
      for (int j = 0; j < 3 + i % 5; ++j) lines += (j ? ", " : "") + std::to_string((i * 7 + j * 3) % 11);
      lines += "]}\n";
    }
    test::write_text(scratch_ / "data.jsonl", lines);
    learning_.curve = Curve::kConstant;
    learning_.peak = 0.5;
    make();
  }

  // Starts again from the same weights and the beginning of the data.
  void make(double max_grad_norm = 0.0, NonFinite nonfinite = NonFinite::kStop, int64_t rows = 1,
            int64_t micro_batches = 4) {
    state_ = new_state();
    DataConfig data;
    data.train.emplace_back();
    data.train[0].path = scratch_ / "data.jsonl";
    data.train[0].format = DataFormat::kTokens;
    data.seq_len = 6;
    data.packing = Packing::kNone;
    data.overflow = Overflow::kTruncate;
    data.vocab_size = 11;
    data.cache_dir = scratch_ / "cache";
    data_ = std::make_unique<TrainData>(data, nullptr);
    TrainerOptions options;
    options.shape = {rows, micro_batches, 0, 1};
    options.schedule = learning_;
    options.max_grad_norm = max_grad_norm;
    options.nonfinite = nonfinite;
    options.max_steps = 100;
    options.max_skipped_steps = max_skipped_steps_;
    options.requests = requests_;
    trainer_ = std::make_unique<Trainer>(state_, *data_, options);
  }

  // With the same weights each time.
  RunState new_state() {
    CpuRun run(SmallModel{}.program(), {reference_}, {}, 1, 6);
    return test::one_rank_state(std::move(run), plugins_.make("optimizer", "sgd"), world_);
  }

  std::map<std::string, std::vector<float>> weights() const {
    std::map<std::string, std::vector<float>> all;
    for (const auto& p : state_.parameters().all()) all[p->name] = test::values_of(p->value);
    return all;
  }
  // Bit for bit, NaN too.
  void expect_unchanged(const std::map<std::string, std::vector<float>>& before) const {
    for (const auto& [name, values] : weights())
      EXPECT_EQ(std::memcmp(values.data(), before.at(name).data(), values.size() * sizeof(float)), 0) << name;
  }
  float& weight() { return state_.parameters().find("layers.1.up.weight")->value.data_as<float>()[3]; }

  ScratchDirectory scratch_;
  LoadedPlugins plugins_;
  OpsProvider reference_ = plugins_.ops("reference");
  LearningRateSchedule learning_;
  int64_t max_skipped_steps_ = 0;
  std::function<StepRequests()> requests_;
  World world_;
  RunState state_;
  std::unique_ptr<TrainData> data_;
  std::unique_ptr<Trainer> trainer_;
};

TEST(TrainerState, RefusesCountsThatCannotBe) {
  const auto refusal = [](const char* key, int64_t value) -> std::string {
    Json saved = {{"step", 5}, {"tokens", 40}, {"trained_tokens", 30}, {"skipped_steps", 2}};
    saved[key] = value;
    try {
      trainer_state_from_json(saved, "m");
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refusal("step", 5), "no error");
  for (const char* key : {"step", "tokens", "trained_tokens", "skipped_steps"})
    EXPECT_EQ(refusal(key, -7), std::string("m: '") + key + "' is -7, expected 0 or more");
  EXPECT_EQ(refusal("skipped_steps", 6), "m: 'skipped_steps' is 6, but 'step' is only 5");
  EXPECT_EQ(refusal("trained_tokens", 41), "m: 'trained_tokens' is 41, but 'tokens' is only 40");
}

TEST_F(TrainerTest, ScalesGradientsDownToTheNorm) {
  const auto before = weights();
  const StepRecord free = trainer_->step();
  const auto moved = weights();
  make(free.grad_norm / 4.0);
  const StepRecord clipped = trainer_->step();
  EXPECT_EQ(clipped.grad_norm, free.grad_norm) << "the norm before clipping is reported";
  for (const auto& [name, values] : weights())
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i] - before.at(name)[i], (moved.at(name)[i] - before.at(name)[i]) / 4.0f, 1e-6) << name;
  make(free.grad_norm * 2.0);
  trainer_->step();
  EXPECT_EQ(weights(), moved) << "a smaller norm is left alone";
}

TEST_F(TrainerTest, TheLossIsTheMeanOverAllTrainedTokensForAnyMicroBatches) {
  const StepRecord four = trainer_->step();
  const auto after = weights();
  make(0.0, NonFinite::kStop, 4, 1);
  const StepRecord one = trainer_->step();
  EXPECT_EQ(one.trained_tokens, four.trained_tokens);
  EXPECT_NEAR(one.loss, four.loss, 1e-6);
  EXPECT_NEAR(one.grad_norm, four.grad_norm, 1e-5);
  for (const auto& [name, values] : weights())
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], after.at(name)[i], 1e-6) << name;
}

TEST_F(TrainerTest, AsksForRequestsOnceAStep) {
  int asked = 0;
  requests_ = [&asked] { return StepRequests{.stop = asked == 1, .save = asked == 2, .ready = asked++ != 0}; };
  make();
  for (int step = 0; step < 3; ++step) {
    trainer_->step();
    EXPECT_EQ(trainer_->requests().stop, step == 1);
    EXPECT_EQ(trainer_->requests().save, step == 2);
    EXPECT_EQ(trainer_->requests().ready, step != 0);
  }
  EXPECT_EQ(asked, 3);
}

TEST_F(TrainerTest, LearnsAndCounts) {
  const double first = trainer_->step().loss;
  double last = first;
  for (int i = 0; i < 60; ++i) last = trainer_->step().loss;
  EXPECT_LT(last, first - 0.3);
  EXPECT_EQ(trainer_->state().step, 61);
  EXPECT_GT(trainer_->state().tokens, trainer_->state().trained_tokens);
}

// As a run does that changes its providers or its strategies.
TEST_F(TrainerTest, AnotherStateOfTheRunMayTakeOverBetweenTwoSteps) {
  std::vector<double> losses;
  for (int i = 0; i < 4; ++i) losses.push_back(trainer_->step().loss);
  const auto final_weights = weights();
  make();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(trainer_->step().loss, losses[i]);
  RunState next = new_state();
  for (const auto& p : state_.parameters().all()) {
    Tensor& value = next.parameters().find(p->name)->value;
    ASSERT_EQ(value.num_bytes(), p->value.num_bytes());
    std::memcpy(value.data(), p->value.data(), value.num_bytes());
  }
  state_ = std::move(next);
  for (size_t i = 2; i < 4; ++i) EXPECT_EQ(trainer_->step().loss, losses[i]);
  expect_unchanged(final_weights);
}

TEST_F(TrainerTest, AStepThatIsNotFiniteStopsTheRunUnapplied) {
  trainer_->step();
  for (float bad : {NAN, INFINITY, 3e38f}) {
    const float good = std::exchange(weight(), bad);
    const auto before = weights();
    try {
      trainer_->step();
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kNumeric);
      EXPECT_HAS(e.what(), "the step was not applied");
      EXPECT_HAS(e.what(), std::isfinite(bad) ? "train.nonfinite" : "the parameter 'layers.1.up.weight' at [");
    }
    expect_unchanged(before);
    EXPECT_EQ(trainer_->state().step, 1);
    weight() = good;
  }
}

TEST_F(TrainerTest, AStepThatIsNotFiniteIsSkippedAndCounted) {
  make(1.0, NonFinite::kSkip);
  const float good = std::exchange(weight(), 3e38f);  // products with it overflow
  const auto before = weights();
  const StepRecord record = trainer_->step();
  EXPECT_TRUE(record.skipped);
  expect_unchanged(before);
  for (const OptimizerState& state : state_.optimizer->states()) EXPECT_EQ(state.tensor.sum_of_squares(), 0.0);
  EXPECT_EQ(trainer_->state().skipped_steps, 1u);
  EXPECT_EQ(trainer_->state().step, 1);
  weight() = good;
  const StepRecord next = trainer_->step();
  EXPECT_FALSE(next.skipped);
  EXPECT_TRUE(std::isfinite(next.loss));
  EXPECT_EQ(next.step, 2);
}

TEST_F(TrainerTest, ASkippedStepStopsTheRunIfAParameterIsNotFinite) {
  make(1.0, NonFinite::kSkip);
  weight() = NAN;
  try {
    trainer_->step();
    FAIL() << "it was skipped, as all later ones would be";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kNumeric);
    const int64_t columns = state_.parameters().find("layers.1.up.weight")->descriptor.global_shape[1];
    const std::string at = std::to_string(3 / columns) + ", " + std::to_string(3 % columns);
    EXPECT_HAS(e.what(), "'layers.1.up.weight' at [" + at + "]");
  }
}

TEST_F(TrainerTest, TooManySkippedStepsInARowStopTheRun) {
  max_skipped_steps_ = 3;
  make(1.0, NonFinite::kSkip);
  const float good = std::exchange(weight(), 3e38f);
  trainer_->step();
  trainer_->step();
  weight() = good;
  EXPECT_FALSE(trainer_->step().skipped) << "a step that is applied resets the count";
  weight() = 3e38f;
  trainer_->step();
  trainer_->step();
  try {
    trainer_->step();
    FAIL() << "three were skipped";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kNumeric);
    EXPECT_HAS(e.what(), "3 steps in a row were skipped, train.max_skipped_steps is 3");
  }
}

}  // namespace
}  // namespace chassis
