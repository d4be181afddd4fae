// Ops without a backward, which LibTorch differentiates, are compared with the same ops with one.
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "host/service/handle.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;
using test::LoadedPlugins;
using test::SmallModel;
using test::StubNode;
using test::StubProvider;

class Composed : public testing::Test {
 protected:
  Composed() {
    composed_.plan = [](const StubNode&, chassis_infer_t& out) { out.flags = CHASSIS_KERNEL_COMPOSED; };
    composed_.forward = [](const StubNode& node, chassis_call_t& call) {
      at::Tensor y = tensor_of(call.inputs[0]);
      if (node.pattern == "activation")
        y = at::gelu(y);
      else
        y = at::linear(y, tensor_of(call.params[0]), node.params.size() > 1 ? tensor_of(call.params[1]) : at::Tensor());
      call.outputs[0] = new_handle(std::move(y));
    };
    composed_.table().backward_inputs = nullptr;
    composed_.table().backward_params = nullptr;
  }

  LoadedPlugins plugins_;
  OpsProvider reference_ = plugins_.ops("reference");
  StubProvider composed_{"composed", {"linear", "activation"}};
};

TEST_F(Composed, GivesTheGradientsOfAnExplicitBackward) {
  for (bool tied : {false, true}) {
    CpuRun own(SmallModel{.tied = tied}.program(), {reference_});
    CpuRun differentiated(SmallModel{.tied = tied}.program(), {composed_.provider(), reference_});
    const std::vector<Fields> batches = {fields_of({1, 5, 9}, 1), fields_of({2, 2, 10}, 1)};
    EXPECT_NEAR(own.step(batches), differentiated.step(batches), 1e-5);
    const auto expected = own.gradients();
    EXPECT_EQ(expected.size(), own.parameters.all().size());
    for (const auto& [name, gradient] : differentiated.gradients())
      EXPECT_LT(test::largest_difference(gradient, expected.at(name)), 1e-5) << name;
  }
}

TEST_F(Composed, IsTheSameUnderRecompute) {
  CpuRun run(SmallModel{}.program(), {composed_.provider(), reference_});
  const double loss = run.step({fields_of(kIds, 2)});
  const auto kept = run.gradients();
  run.make(Recompute::kFull);
  EXPECT_EQ(run.step({fields_of(kIds, 2)}), loss);
  for (const auto& [name, gradient] : run.gradients())
    EXPECT_EQ(test::values_of(gradient), test::values_of(kept.at(name))) << name;
}

TEST_F(Composed, TrainsNothingThatIsFrozen) {
  CpuRun run(SmallModel{}.program(), {composed_.provider(), reference_});
  for (const auto& p : run.parameters.all()) p->trainable = p->name.find("bias") != std::string::npos;
  run.step({fields_of(kIds, 2)});
  EXPECT_EQ(run.gradients().size(), 2u);
}

TEST_F(Composed, AForwardThatDoesNotUseATenIsRefused) {
  composed_.forward = [](const StubNode& node, chassis_call_t& call) {
    call.outputs[0] = Tensor::zeros(node.outputs[0].shape, Dtype::f32).release();
  };
  CpuRun run(SmallModel{}.program(), {composed_.provider(), reference_});
  run.executor->forward(0, fields_of(kIds, 2), 1.0);
  EXPECT_HAS(test::refusal([&] { run.executor->backward(0); }), "forward of a composed op is not differentiable");
}

}  // namespace
}  // namespace chassis
