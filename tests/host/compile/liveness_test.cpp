// Lifetimes and overwritten inputs of one layer.
#include "host/compile/liveness.hpp"

#include <gtest/gtest.h>

#include "host/compile/parameters.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::SmallModel;
using test::StubNode;
using test::StubProvider;

// The layer of the small model, as in its second unit.
struct Layer {
  Layer(StubProvider& provider, Purpose purpose) {
    options.kernels = {provider.provider()};
    options.purpose = purpose;
    options.batch = 2;
    options.time = 3;
    const std::vector<uint8_t> trainable(program.blocks[1].slots.size(), purpose == Purpose::kTraining);
    block = resolve_block(program, layout, 1, trainable, purpose == Purpose::kTraining, options);
    find_liveness(program, layout, options, block);
  }
  std::vector<int> overwritten() const {
    std::vector<int> inputs;
    for (const Node& node : block.nodes) inputs.push_back(node.overwritten_input);
    return inputs;
  }
  std::vector<std::vector<ValueId>> dead() const {
    std::vector<std::vector<ValueId>> out;
    for (const Node& node : block.nodes) {
      out.push_back(node.dead_after_forward);
      out.push_back(node.dead_after_backward);
    }
    return out;
  }

  Program program = SmallModel{}.program();
  ProgramLayout layout;
  ResolveOptions options;
  ResolvedBlock block;
};

TEST(Liveness, OnlyTrainingKeepsValuesForBackward) {
  StubProvider all("all");
  all.plan = [](const StubNode& node, chassis_infer_t& out) {
    if (node.training) out.keeps_inputs = ~0u;
  };
  EXPECT_EQ(Layer(all, Purpose::kLoss).block.kept_bytes, 0u);
  const Layer training(all, Purpose::kTraining);
  // The norm's input and output, up, gelu and down, for 2 rows of 3 in fp32. kept_bytes leaves out the block's input.
  EXPECT_EQ(training.block.kept.size(), 5u);
  EXPECT_EQ(training.block.kept_bytes, 2u * 3 * (4 + 6 + 6 + 4) * 4);
}

TEST(Liveness, AnOutputTakesTheMemoryOfAnInputThatDies) {
  StubProvider all("all");
  all.plan = [](const StubNode& node, chassis_infer_t& out) {
    out.flags = CHASSIS_KERNEL_HOST_OUTPUTS;
    if (node.pattern == "activation") out.overwrites_inputs = 1;
    if (node.pattern == "add") out.overwrites_inputs = 3;  // x, which is the block's input, and the branch
  };
  EXPECT_EQ(Layer(all, Purpose::kLoss).overwritten(), (std::vector<int>{-1, -1, 0, -1, 1}));
  all.plan = [](const StubNode& node, chassis_infer_t& out) {
    out.flags = CHASSIS_KERNEL_HOST_OUTPUTS;
    out.overwrites_inputs = ~0u;
    out.keeps_inputs = node.training ? ~0u : 0u;  // backward reads them, so they do not die
  };
  EXPECT_EQ(Layer(all, Purpose::kTraining).overwritten(), (std::vector<int>{-1, -1, -1, -1, -1}));
}

TEST(Liveness, RunningThePassAgainGivesTheSame) {
  StubProvider all("all");
  all.plan = [](const StubNode& node, chassis_infer_t& out) {
    out.flags = CHASSIS_KERNEL_HOST_OUTPUTS;
    out.keeps_inputs = node.pattern == "linear" ? 1 : 0;
    out.num_saved = 1;
    out.saved[0] = {CHASSIS_DTYPE_F32, 1, {8}};
    out.overwrites_inputs = node.pattern == "activation" || node.pattern == "add" ? ~0u : 0u;
  };
  Layer layer(all, Purpose::kTraining);
  const auto dead = layer.dead();
  const auto overwritten = layer.overwritten();
  const ResolvedBlock before = layer.block;
  find_liveness(layer.program, layer.layout, layer.options, layer.block);
  EXPECT_EQ(layer.dead(), dead);
  EXPECT_EQ(layer.overwritten(), overwritten);
  EXPECT_EQ(layer.block.kept, before.kept);
  EXPECT_EQ(layer.block.kept_bytes, before.kept_bytes);
  EXPECT_EQ(layer.block.saved_bytes, before.saved_bytes);
  EXPECT_EQ(layer.block.input_bytes, before.input_bytes);
  EXPECT_EQ(layer.block.peak_forward_bytes, before.peak_forward_bytes);
}

}  // namespace
}  // namespace chassis
