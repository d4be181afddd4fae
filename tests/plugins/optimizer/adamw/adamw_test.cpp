// adamw against PyTorch's fused kernel, step by step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tests/support/fused_dispatch.hpp"

namespace {

using fake::OptimizerRun;
using Options = std::map<std::string, std::string>;

class AdamW : public testing::Test {
 protected:
  std::string refusal(const Options& options) {
    try {
      fake::Instance(host_, plugin_, "optimizer", "adamw", options);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "accepted";
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/adamw.so"};
};

at::Tensor copy_of(chassis_tensor_t t) {
  return at::from_blob(OptimizerRun::data(t), {fake::tensor(t)->view.num_elements}, at::kFloat).clone();
}

TEST_F(AdamW, MatchesTheFusedKernelOfPyTorch) {
  fake::Instance instance(host_, plugin_, "optimizer", "adamw", {{"betas", "[0.9, 0.95]"}, {"eps", "1e-8"}});
  OptimizerRun run(host_, instance);
  std::vector<at::Tensor> params, averages, squares;
  for (chassis_tensor_t param : run.params) {
    params.push_back(copy_of(param));
    averages.push_back(at::zeros_like(params.back()));
    squares.push_back(at::zeros_like(params.back()));
  }
  const double lr = 1e-2, clip = 0.37;
  for (int64_t step = 1; step <= 20; ++step) {
    run.fill_grads(step);
    for (size_t i = 0; i < params.size(); ++i) {
      std::vector<at::Tensor> p = {params[i]}, g = {copy_of(run.grads[i]).mul_(clip)}, m = {averages[i]},
                              v = {squares[i]}, none, count = {at::full({}, static_cast<double>(step), at::kFloat)};
      at::_fused_adamw_(p, g, m, v, none, count, lr, 0.9, 0.95, run.decay[i], 1e-8, false, false);
    }
    run.step(step, lr, clip);
  }
  for (size_t i = 0; i < params.size(); ++i) {
    EXPECT_LE((copy_of(run.params[i]) - params[i]).abs().max().item<float>(), 1e-6) << i;
    EXPECT_LE((copy_of(run.states[2 * i]) - averages[i]).abs().max().item<float>(), 1e-7) << i;
    EXPECT_LE((copy_of(run.states[2 * i + 1]) - squares[i]).abs().max().item<float>(), 1e-7) << i;
  }
}

TEST_F(AdamW, UsesATenOnOtherDevices) {
  EXPECT_LE(fake::largest_difference(host_, plugin_, "adamw", {{"betas", "[0.9, 0.95]"}}), 1e-6);
}

TEST_F(AdamW, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<std::vector<char>> results;
  for (uint32_t threads : {1u, 5u}) {
    host_.num_threads = threads;
    fake::Instance instance(host_, plugin_, "optimizer", "adamw");
    OptimizerRun run(host_, instance);
    for (int64_t step = 1; step <= 3; ++step) run.fill_grads(step), run.step(step, 1e-3, 1.0);
    results.push_back(fake::tensor(run.params[3])->bytes);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_F(AdamW, DeclaresItsStatesByRole) {
  fake::Instance instance(host_, plugin_, "optimizer", "adamw");
  const OptimizerRun run(host_, instance);
  const auto states = run.describe(run.facts[0]);
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(fake::text_of(states[0].role), "exp_avg");
  EXPECT_EQ(fake::text_of(states[1].role), "exp_avg_sq");
}

TEST_F(AdamW, RefusesContradictoryBetas) {
  EXPECT_EQ(refusal({{"betas", "[0.9]"}}), "run.toml:1:1: betas has 1 items, expected 2");
  host_.set_by_user.clear();
  EXPECT_EQ(refusal({{"betas", "[0.9, 0.95]"}, {"beta2", "0.95"}}),
            "run.toml:1:1: beta2 and betas are both set; set one or the other");
  host_.set_by_user.clear();
  EXPECT_NE(refusal({{"beta1", "1.0"}}).find(": beta1 of adamw is 1, expected below 1"), std::string::npos);
}

}  // namespace
