// Kernels that return wrong tensors, or throw: the error names the provider and the node.
#include "host/execute/kernel_call.hpp"

#include <gtest/gtest.h>

#include "host/base/log.hpp"
#include "host/service/memory.hpp"
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

class KernelCallTest : public testing::Test {
 protected:
  KernelCallTest() { install_memory_allocator(); }

  LoadedPlugins plugins_;
  OpsProvider reference_ = plugins_.ops("reference");
};

TEST_F(KernelCallTest, AProviderThatSavesOtherTensorsThanItDeclaredIsNamed) {
  auto error_of = [&](uint32_t declared, int made, int64_t size) {
    StubProvider wrong("wrong", {"activation"});
    wrong.plan = [&](const StubNode&, chassis_infer_t& out) {
      out.num_saved = declared;
      for (uint32_t i = 0; i < declared; ++i) out.saved[i] = {CHASSIS_DTYPE_F32, 1, {5}};
    };
    const auto plain = wrong.forward;
    wrong.forward = [&](const StubNode& node, chassis_call_t& call) {
      plain(node, call);
      for (int i = 0; i < made; ++i) call.saved[i] = Tensor::zeros({&size, 1}, Dtype::f32).release();
    };
    CpuRun run(SmallModel{}.program(), {wrong.provider(), reference_});
    return test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); });
  };
  EXPECT_EQ(error_of(1, 1, 5), "");
  EXPECT_HAS(error_of(1, 0, 5), "provider 'wrong' on layer.gelu: infer sets num_saved to 1, but forward saved 0");
  EXPECT_HAS(error_of(2, 1, 5), "infer sets num_saved to 2, but forward saved 1");
  EXPECT_HAS(error_of(1, 1, 7), "forward saved tensor 0 with 7 elements of f32, but infer declared 5 of f32");
  EXPECT_HAS(error_of(5, 0, 5), "infer declares 5 saved tensors; the maximum is 4");
}

TEST_F(KernelCallTest, AProviderThatLeavesAnOutputEmptyIsNamed) {
  StubProvider empty("empty", {"activation"});
  empty.forward = [](const StubNode&, chassis_call_t&) {};
  CpuRun run(SmallModel{}.program(), {empty.provider(), reference_});
  EXPECT_HAS(test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); }),
             "provider 'empty' on layer.gelu: forward left output 0 empty");
}

// A tensor that differs from the right one by `fault`; "" for the right one.
Tensor wrong_tensor(const std::string& fault, const StubNode::Operand& right, chassis_tensor_t input) {
  std::vector<int64_t> shape = right.shape;
  if (fault == "shape") shape.back() += 1;
  if (fault == "rank") shape.push_back(1);
  if (fault == "alias") return Tensor::share(input);
  if (fault == "stride") {
    const int64_t one = 1;
    return Tensor::zeros({&one, 1}, right.dtype).strided(shape, std::vector<int64_t>(shape.size(), 0), 0);
  }
  return Tensor::zeros(shape, fault == "dtype" ? Dtype::bf16 : right.dtype,
                       {fault == "device" ? Device::Type::kMeta : Device::Type::kCpu, 0});
}

TEST_F(KernelCallTest, AProviderThatMakesAnotherOutputThanTheNodeHasIsNamed) {
  auto error_of = [&](const std::string& fault) {
    StubProvider wrong("wrong", {"activation"});
    wrong.forward = [&](const StubNode& node, chassis_call_t& call) {
      call.outputs[0] = wrong_tensor(fault, node.outputs[0], call.inputs[0]).release();
    };
    CpuRun run(SmallModel{}.program(), {wrong.provider(), reference_});
    return test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); });
  };
  const std::string prefix = "provider 'wrong' on layer.gelu: forward made output 0 ";
  EXPECT_EQ(error_of(""), "");
  EXPECT_HAS(error_of("dtype"), prefix + "as bf16[2, 3, 6] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("shape"), prefix + "as f32[2, 3, 7] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("rank"), prefix + "as f32[2, 3, 6, 1] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("device"), prefix + "as f32[2, 3, 6] on meta, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("stride"), prefix + "with strides [0, 0, 0], expected a contiguous tensor");
  EXPECT_HAS(error_of("alias"), prefix + "in the memory of input 0");
}

TEST_F(KernelCallTest, AProviderThatMakesAnotherGradientThanTheInputHasIsNamed) {
  auto error_of = [&](const std::string& fault) {
    StubProvider wrong("wrong", {"activation"});
    wrong.plan = [](const StubNode&, chassis_infer_t& out) { out.keeps_inputs = 1; };
    wrong.backward_inputs = [&](const StubNode& node, chassis_call_t& call) {
      call.grad_inputs[0] = wrong_tensor(fault, node.inputs[0], call.inputs[0]).release();
    };
    CpuRun run(SmallModel{}.program(), {wrong.provider(), reference_});
    return test::refusal([&] { run.step({fields_of(kIds, 2)}); });
  };
  const std::string prefix = "provider 'wrong' on layer.gelu: backward made the gradient of input 0 ";
  EXPECT_EQ(error_of(""), "");
  EXPECT_HAS(error_of("dtype"), prefix + "as bf16[2, 3, 6] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("shape"), prefix + "as f32[2, 3, 7] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("device"), prefix + "as f32[2, 3, 6] on meta, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(error_of("stride"), prefix + "with strides [0, 0, 0], expected a contiguous tensor");
  EXPECT_HAS(error_of("alias"), prefix + "in the memory of input 0");
}

TEST_F(KernelCallTest, AGradientThatAProviderLeavesOutIsCounted) {
  log::reset_counted_warnings();
  StubProvider silent("silent", {"activation"});
  silent.backward_inputs = [](const StubNode&, chassis_call_t&) {};
  CpuRun run(SmallModel{}.program(), {silent.provider(), reference_});
  run.step({fields_of(kIds, 2)});
  const auto counted = counted_warnings();
  ASSERT_EQ(counted.size(), 1u);
  EXPECT_EQ(counted[0].first, "provider 'silent' on layer.gelu: gradients left out");
  EXPECT_EQ(counted[0].second, 2u) << "once for each of the two layers";
  log::reset_counted_warnings();
}

TEST_F(KernelCallTest, AnErrorOfAKernelNamesProviderAndNode) {
  StubProvider broken("broken", {"activation"});
  broken.forward = [](const StubNode&, chassis_call_t&) { throw config_error("out of range"); };
  {
    CpuRun run(SmallModel{}.program(), {broken.provider(), reference_});
    EXPECT_HAS(test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); }),
               "provider 'broken' on layer.gelu in forward (unit 1): out of range");
  }
  EXPECT_EQ(memory_usage().of(MemoryCategory::kActivations).live_bytes, 0u);
}

TEST_F(KernelCallTest, AFailedBackwardFreesItsMemory) {
  const uint64_t before = memory_usage().live_bytes;
  {
    StubProvider broken("broken", {"activation"});
    const auto plain = broken.backward_inputs;
    broken.backward_inputs = [&](const StubNode& node, chassis_call_t& call) {
      plain(node, call);
      throw plugin_error("failed at the end");
    };
    CpuRun run(SmallModel{}.program(), {broken.provider(), reference_});
    run.executor->forward(0, fields_of(kIds, 2), 1.0);
    EXPECT_HAS(test::refusal([&] { run.executor->backward(0); }),
               "provider 'broken' on layer.gelu in backward_inputs (unit 2): failed at the end");
    EXPECT_HAS(test::refusal([&] { run.executor->backward(0); }),
               "backward of a micro-batch whose forward did not run");
  }
  EXPECT_EQ(memory_usage().live_bytes, before);
}

}  // namespace
}  // namespace chassis
