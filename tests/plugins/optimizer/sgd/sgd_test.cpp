// sgd against PyTorch's fused kernel, step by step.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "tests/support/fused_dispatch.hpp"

namespace {

using fake::OptimizerRun;
using Options = std::map<std::string, std::string>;

at::Tensor copy_of(chassis_tensor_t t) {
  return at::from_blob(OptimizerRun::data(t), {fake::tensor(t)->view.num_elements}, at::kFloat).clone();
}

class Sgd : public testing::Test {
 protected:
  void compare(double momentum, double dampening, bool nesterov) {
    fake::Instance instance(host_, plugin_, "optimizer", "sgd",
                            {{"momentum", std::to_string(momentum)},
                             {"dampening", std::to_string(dampening)},
                             {"nesterov", nesterov ? "true" : "false"}});
    OptimizerRun run(host_, instance);
    ASSERT_EQ(run.num_states[0], momentum == 0 ? 0u : 1u);
    std::vector<at::Tensor> params, buffers;
    for (chassis_tensor_t param : run.params) {
      params.push_back(copy_of(param));
      buffers.push_back(at::zeros_like(params.back()));
    }
    for (int64_t step = 1; step <= 10; ++step) {
      run.fill_grads(step);
      for (size_t i = 0; i < params.size(); ++i) {
        std::vector<at::Tensor> p = {params[i]}, g = {copy_of(run.grads[i]).mul_(0.37)}, b;
        if (momentum != 0) b = {buffers[i]};
        at::_fused_sgd_(p, g, b, run.decay[i], momentum, 0.05, dampening, nesterov, false, step == 1);
      }
      run.step(step, 0.05, 0.37);
    }
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_LE((copy_of(run.params[i]) - params[i]).abs().max().item<float>(), 1e-6) << i;
    }
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/sgd.so"};
};

TEST_F(Sgd, MatchesPyTorchWithoutMomentum) { compare(0, 0, false); }
TEST_F(Sgd, MatchesPyTorchWithMomentum) { compare(0.9, 0, false); }
TEST_F(Sgd, MatchesPyTorchWithDampening) { compare(0.9, 0.25, false); }
TEST_F(Sgd, MatchesPyTorchWithNesterov) { compare(0.9, 0, true); }

TEST_F(Sgd, UsesATenOnOtherDevices) {
  EXPECT_LE(fake::largest_difference(host_, plugin_, "sgd", {{"momentum", "0.9"}, {"nesterov", "true"}}), 1e-6);
  EXPECT_LE(fake::largest_difference(host_, plugin_, "sgd", {}), 1e-6);
}

TEST_F(Sgd, RefusesNesterovWithoutMomentum) {
  try {
    fake::Instance(host_, plugin_, "optimizer", "sgd", {{"nesterov", "true"}});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(),
                 "run.toml:1:1: nesterov needs momentum above 0 and dampening 0, got momentum 0 and dampening 0");
  }
}

}  // namespace
