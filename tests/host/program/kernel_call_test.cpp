// Kernels that return wrong tensors, or throw: the error names the provider and the node.
#include "host/program/kernel_call.hpp"

#include <gtest/gtest.h>

#include "host/base/log.hpp"
#include "host/service/memory.hpp"
#include "tests/host/program/cpu_run.hpp"
#include "tests/host/program/stub_provider.hpp"
#include "tests/support/expect_has.hpp"

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

TEST_F(KernelCallTest, AProviderThatSavesOtherThanItSaidIsCaught) {
  auto said = [&](uint32_t promised, int made, int64_t size) {
    StubProvider liar("liar", {"activation"});
    liar.plan = [&](const StubNode&, chassis_infer_t& out) {
      out.num_saved = promised;
      for (uint32_t i = 0; i < promised; ++i) out.saved[i] = {CHASSIS_DTYPE_F32, 1, {5}};
    };
    const auto plain = liar.forward;
    liar.forward = [&](const StubNode& node, chassis_call_t& call) {
      plain(node, call);
      for (int i = 0; i < made; ++i) call.saved[i] = Tensor::zeros({&size, 1}, Dtype::f32).release();
    };
    CpuRun run(SmallModel{}.program(), {liar.provider(), reference_});
    return test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); });
  };
  EXPECT_EQ(said(1, 1, 5), "");
  EXPECT_HAS(said(1, 0, 5), "provider 'liar' on layer.gelu: infer promised 1 saved tensors, forward made 0");
  EXPECT_HAS(said(2, 1, 5), "infer promised 2 saved tensors, forward made 1");
  EXPECT_HAS(said(1, 1, 7), "infer promised 5 elements of saved tensor 0, forward made 7");
  EXPECT_HAS(said(5, 0, 5), "infer names 5 saved tensors, at most 4");
}

TEST_F(KernelCallTest, AProviderThatLeavesAnOutputEmptyIsCaught) {
  StubProvider empty("empty", {"activation"});
  empty.forward = [](const StubNode&, chassis_call_t&) {};
  CpuRun run(SmallModel{}.program(), {empty.provider(), reference_});
  EXPECT_HAS(test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); }),
             "provider 'empty' on layer.gelu: forward left output 0 empty");
}

// What a provider hands back instead of a tensor of the value's shape, dtype and device; the next reader is innocent.
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
  auto said = [&](const std::string& fault) {
    StubProvider liar("liar", {"activation"});
    liar.forward = [&](const StubNode& node, chassis_call_t& call) {
      call.outputs[0] = wrong_tensor(fault, node.outputs[0], call.inputs[0]).release();
    };
    CpuRun run(SmallModel{}.program(), {liar.provider(), reference_});
    return test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); });
  };
  const std::string who = "provider 'liar' on layer.gelu: forward made output 0 ";
  EXPECT_EQ(said(""), "");
  EXPECT_HAS(said("dtype"), who + "as bf16[2, 3, 6] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("shape"), who + "as f32[2, 3, 7] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("rank"), who + "as f32[2, 3, 6, 1] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("device"), who + "as f32[2, 3, 6] on meta, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("stride"), who + "with strides [0, 0, 0], expected a contiguous tensor");
  EXPECT_HAS(said("alias"), who + "in the memory of input 0");
}

TEST_F(KernelCallTest, AProviderThatMakesAnotherGradientThanTheInputHasIsNamed) {
  auto said = [&](const std::string& fault) {
    StubProvider liar("liar", {"activation"});
    liar.plan = [](const StubNode&, chassis_infer_t& out) { out.keeps_inputs = 1; };
    liar.backward_inputs = [&](const StubNode& node, chassis_call_t& call) {
      call.grad_inputs[0] = wrong_tensor(fault, node.inputs[0], call.inputs[0]).release();
    };
    CpuRun run(SmallModel{}.program(), {liar.provider(), reference_});
    return test::refusal([&] { run.step({fields_of(kIds, 2)}); });
  };
  const std::string who = "provider 'liar' on layer.gelu: backward made the gradient of input 0 ";
  EXPECT_EQ(said(""), "");
  EXPECT_HAS(said("dtype"), who + "as bf16[2, 3, 6] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("shape"), who + "as f32[2, 3, 7] on cpu, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("device"), who + "as f32[2, 3, 6] on meta, expected f32[2, 3, 6] on cpu");
  EXPECT_HAS(said("stride"), who + "with strides [0, 0, 0], expected a contiguous tensor");
  EXPECT_HAS(said("alias"), who + "in the memory of input 0");
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
  EXPECT_EQ(counted[0].second, 2u) << "of the two layers";
  log::reset_counted_warnings();
}

TEST_F(KernelCallTest, WhatAKernelThrowsNamesProviderAndNode) {
  StubProvider broken("broken", {"activation"});
  broken.forward = [](const StubNode&, chassis_call_t&) { throw config_error("the moon is full"); };
  {
    CpuRun run(SmallModel{}.program(), {broken.provider(), reference_});
    EXPECT_HAS(test::refusal([&] { run.executor->forward(0, fields_of(kIds, 2), 1.0); }),
               "provider 'broken' on layer.gelu: the moon is full");
  }
  EXPECT_EQ(memory_usage().of(MemoryCategory::kActivations).live_bytes, 0u);
}

TEST_F(KernelCallTest, AFailedBackwardLeavesNothingBehind) {
  const uint64_t before = memory_usage().live_bytes;
  {
    StubProvider broken("broken", {"activation"});
    const auto plain = broken.backward_inputs;
    broken.backward_inputs = [&](const StubNode& node, chassis_call_t& call) {
      plain(node, call);
      throw plugin_error("too late");
    };
    CpuRun run(SmallModel{}.program(), {broken.provider(), reference_});
    run.executor->forward(0, fields_of(kIds, 2), 1.0);
    EXPECT_HAS(test::refusal([&] { run.executor->backward(0); }),
               "provider 'broken' on layer.gelu in backward_inputs (unit 2): too late");
    EXPECT_HAS(test::refusal([&] { run.executor->backward(0); }),
               "backward of a micro-batch whose forward did not run");
  }
  EXPECT_EQ(memory_usage().live_bytes, before);
}

}  // namespace
}  // namespace chassis
