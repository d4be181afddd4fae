// Branches, replaced uses, and edits that break a rule.
#include "host/graph/rewrite.hpp"

#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::SmallModel;

TEST(Rewrite, ABranchIsAddedAfterALinear) {
  Program program = SmallModel{}.program();
  BlockType& layer = program.blocks[1];
  const DimId hidden = *program.find_dim("hidden"), ffn = *program.find_dim("ffn");
  ParameterSlot weight;
  weight.name = "branch.weight";
  weight.axes = {{ffn}, {hidden}};
  const SlotId slot = layer.add_slot(weight);
  const Op up = layer.ops[1];
  ASSERT_EQ(up.name, "up");
  Op branch = make_op(program, layer, "linear", "branch", {up.inputs[0]}, {slot}, {ffn});
  Op sum = make_op(program, layer, "add", "sum", {up.outputs[0], branch.outputs[0]}, {}, {});
  const ValueId result = sum.outputs[0];
  insert_after(layer, 1, {branch, sum});
  replace_uses(layer, up.outputs[0], result, 4);
  std::vector<std::string> names;
  for (const Op& op : layer.ops) names.push_back(op.name);
  EXPECT_EQ(names, (std::vector<std::string>{"norm", "up", "branch", "sum", "gelu", "down", "residual"}));
  EXPECT_EQ(layer.ops[3].inputs[0], up.outputs[0]) << "the branch itself still reads the linear";
  EXPECT_EQ(layer.ops[4].inputs[0], result);
}

TEST(Rewrite, OutputsOfTheBlockAreReplacedToo) {
  Program program = SmallModel{}.program();
  BlockType& layer = program.blocks[1];
  const ValueId before = layer.outputs.at("hidden");
  Op twice = make_op(program, layer, "add", "twice", {before, before}, {}, {});
  const ValueId after = twice.outputs[0];
  insert_after(layer, layer.ops.size() - 1, {twice});
  replace_uses(layer, before, after, layer.ops.size());
  EXPECT_EQ(layer.outputs.at("hidden"), after);
  EXPECT_EQ(layer.ops.back().inputs, (std::vector<ValueId>{before, before}));
}

TEST(Rewrite, NewOpsObeyTheRules) {
  Program program = SmallModel{}.program();
  BlockType& layer = program.blocks[1];
  EXPECT_HAS(test::refusal([&] {
               make_op(program, layer, "add", "odd", {layer.ops[0].outputs[0], layer.ops[1].outputs[0]}, {}, {});
             }),
             "block 'layer', op add 'odd': input 1 is [B, T, ffn=6], expected [B, T, hidden=4]");
  EXPECT_HAS(test::refusal([&] { replace_uses(layer, layer.ops[0].outputs[0], layer.ops[1].outputs[0], 2); }),
             "same dims");
  EXPECT_HAS(test::refusal([&] { insert_after(layer, 99, {}); }), "no op 99 in block 'layer'");
}

}  // namespace
}  // namespace chassis
