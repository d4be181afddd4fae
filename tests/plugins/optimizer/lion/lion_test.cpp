// lion against its formula (Chen et al. 2023, algorithm 2), one element at a time.
#include <gtest/gtest.h>

#include "tests/support/optimizer_run.hpp"

namespace {

using fake::OptimizerRun;

class Lion : public testing::Test {
 protected:
  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/lion.so"};
};

TEST_F(Lion, StepsBySignsOfTheBlend) {
  fake::Instance instance(host_, plugin_, "optimizer", "lion", {{"betas", "[0.95, 0.98]"}});
  OptimizerRun run(host_, instance);
  std::vector<std::vector<double>> params, averages;
  for (chassis_tensor_t p : run.params) {
    params.emplace_back(OptimizerRun::data(p), OptimizerRun::data(p) + OptimizerRun::count(p));
    averages.emplace_back(params.back().size());
  }
  constexpr double kLr = 1e-3, kScale = 0.37;
  int64_t near_zero = 0;
  for (int64_t number = 1; number <= 10; ++number) {
    run.fill_grads(number);
    for (size_t i = 0; i < params.size(); ++i)
      for (size_t e = 0; e < params[i].size(); ++e) {
        const double grad = OptimizerRun::data(run.grads[i])[e] * kScale, blend = 0.95 * averages[i][e] + 0.05 * grad;
        near_zero += std::abs(blend) < 5e-7;
        params[i][e] = params[i][e] * (1 - kLr * run.decay[i]) - kLr * ((blend > 0) - (blend < 0));
        averages[i][e] = 0.98 * averages[i][e] + 0.02 * grad;
      }
    run.step(number, kLr, kScale);
  }
  int64_t flipped = 0;
  for (size_t i = 0; i < params.size(); ++i)
    for (size_t e = 0; e < params[i].size(); ++e) {
      flipped += std::abs(OptimizerRun::data(run.params[i])[e] - params[i][e]) > 1e-6;
      EXPECT_NEAR(OptimizerRun::data(run.states[i])[e], averages[i][e], 1e-6);
    }
  EXPECT_LE(flipped, near_zero) << "signs of a blend that rounds to the other side";
}

TEST_F(Lion, GivesTheSameBitsWithAnyNumberOfThreads) {
  std::vector<std::vector<char>> results;
  for (uint32_t threads : {1u, 5u}) {
    host_.num_threads = threads;
    fake::Instance instance(host_, plugin_, "optimizer", "lion");
    OptimizerRun run(host_, instance);
    for (int64_t number = 1; number <= 3; ++number) run.fill_grads(number), run.step(number, 1e-3, 1.0);
    results.push_back(run.bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
