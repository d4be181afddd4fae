// Layouts that are refused, and two ranks of threads compared with one.
#include "host/compile/layout_pass.hpp"
#include "host/compile/apply_layout.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "host/graph/op_table.hpp"
#include "host/plugin/thread_role.hpp"
#include "tests/support/cpu_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/stub_passes.hpp"
#include "tests/support/two_ranks.hpp"

namespace chassis {
namespace {

using test::CpuRun;
using test::fields_of;
using test::kIds;
using test::LoadedPlugins;
using test::part_of;
using test::Recorder;
using test::SmallModel;
using test::TensorAxis;
using test::ThreadedCollectives;

std::string layout_refusal(Program program, const LayoutStrategy& strategy) {
  const LayoutStrategy* stack[] = {&strategy};
  return test::refusal([&] { apply_layout(program, stack); });
}

TEST(Layout, CollectivesAreEachOthersBackward) {
  for (const CommOp op : {CommOp::kCopy, CommOp::kAllReduce, CommOp::kAllGather, CommOp::kReduceScatter, CommOp::kShift,
                          CommOp::kGather, CommOp::kAllToAll})
    EXPECT_EQ(comm_spec(comm_spec(op).dual).dual, op) << comm_spec(op).name;
}

TEST(Layout, ASizeThatDoesNotDivideIsRefused) {
  const std::string error = layout_refusal(SmallModel{}.program(), TensorAxis(4, {"ffn"}));
  EXPECT_HAS(error, "axis 'tp' of size 4 cannot divide ffn = 6");
  EXPECT_HAS(error, "choose a size that divides 6");
}

TEST(Layout, OneRankAddsTheBiasOfADividedContraction) {
  for (int64_t coordinate : {0, 1}) {
    Program program = test::record([](Recorder& r) {
      const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
      const uint32_t block = r.block("b", [&] {
        const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
        const ValueId u = r.op("linear", "up", {x}, {r.slot("u", {{f}, {h}})}, {}, {f});
        r.output("y", r.op("linear", "down", {u}, {r.slot("d", {{h}, {f}}), r.slot("c", {{h}})}, {}, {h}));
      });
      r.chain("c", "", {block});
    });
    const TensorAxis axis(2, {"ffn"}, false, coordinate);
    const LayoutStrategy* stack[] = {&axis};
    apply_layout(program, stack);
    const BlockType& block = program.blocks[0];
    EXPECT_EQ(std::ranges::find(block.ops, "down", &Op::name)->params.size(), coordinate == 0 ? 2u : 1u);
    EXPECT_EQ(std::ranges::find(block.slots, "c", &ParameterSlot::name)->partial_over, std::vector<std::string>{"tp"});
  }
}

// A block with an own op between a column linear and a row linear.
Program with_own_op(bool mixes_ffn, bool has_weight) {
  return test::record([&](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId u = r.op("linear", "up", {x}, {r.slot("u", {{f}, {h}})}, {}, {f});
      const std::vector<SlotId> params = has_weight ? std::vector{r.slot("w", {{f}})} : std::vector<SlotId>();
      const ValueId y = r.own_op("mine/op", {u}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, f},
                                 mixes_ffn ? std::vector{f} : std::vector<DimId>(), params);
      r.output("y", r.op("linear", "down", {y}, {r.slot("d", {{h}, {f}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
}
std::string ops_text(const Program& program) {
  std::string text;
  for (const Op& op : program.blocks[0].ops) text += (text.empty() ? "" : " ") + op.id.text();
  return text;
}

TEST(Layout, AnOwnOpGetsAllOfADimThatItMixes) {
  const TensorAxis axis(2, {"ffn"});
  const LayoutStrategy* stack[] = {&axis};
  for (const bool has_weight : {false, true}) {
    Program mixing = with_own_op(true, has_weight), pointwise = with_own_op(false, has_weight);
    apply_layout(mixing, stack);
    apply_layout(pointwise, stack);
    EXPECT_EQ(ops_text(mixing), "embedding comm.copy linear comm.gather mine/op comm.split linear comm.all_reduce");
    EXPECT_EQ(ops_text(pointwise), "embedding comm.copy linear mine/op linear comm.all_reduce");
    if (!has_weight) continue;
    const auto weight_of = [](const Program& program) {
      return *std::ranges::find(program.blocks[0].slots, "w", &ParameterSlot::name);
    };
    EXPECT_EQ(weight_of(mixing).sharding[0].kind, Sharding::Kind::kReplicate);
    EXPECT_EQ(weight_of(pointwise).sharding[0].kind, Sharding::Kind::kShard);
    EXPECT_TRUE(weight_of(mixing).partial_over.empty());
  }
}

TEST(Layout, AParameterThatAnOwnOpNeedsWholeCannotBeDividedForAnother) {
  const Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const SlotId up = r.slot("u", {{f}, {h}});
      const ValueId u = r.op("linear", "up", {x}, {up}, {}, {f});
      r.output("y", r.own_op("mine/op", {u}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, f}, std::nullopt, {up}));
    });
    r.chain("c", "", {block});
  });
  const std::string error = layout_refusal(program, TensorAxis(2, {"ffn"}));
  EXPECT_HAS(error,
             "mine/op 'mine/op' does not declare which dims it mixes, so it may mix 'ffn', and so needs the whole of "
             "parameter 'u', of which linear 'up' reads a part");
  EXPECT_HAS(error, "declare its mixed_dims");
}

// Each rank has some of the heads, all of which share the weight.
TEST(Layout, ANormOfEachHeadHasAPartialGradient) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), n = r.dim("heads", 4), d = r.dim("head_dim", 2), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId q = r.op("linear", "q", {x}, {r.slot("q", {{n, d}, {h}})}, {}, {n, d});
      const ValueId y = r.op("rms_norm", "norm", {q}, {r.slot("w", {{d}})}, {{"eps", 1e-6}}, {});
      r.output("y", r.op("linear", "o", {y}, {r.slot("o", {{h}, {n, d}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
  const TensorAxis axis(2, {"heads"});
  const LayoutStrategy* stack[] = {&axis};
  apply_layout(program, stack);
  const BlockType& block = program.blocks[0];
  EXPECT_EQ(std::ranges::find(block.slots, "w", &ParameterSlot::name)->partial_over, std::vector<std::string>{"tp"});
  EXPECT_TRUE(std::ranges::find(block.slots, "q", &ParameterSlot::name)->partial_over.empty());
}

// [B, T, ffn] divided along ffn, through one more op.
Program behind_up(const char* id, std::vector<SlotId> (*slots)(Recorder& r, DimId ffn), OpAttrs attrs) {
  return test::record([&](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId u = r.op("linear", "up", {x}, {r.slot("u", {{f}, {h}})}, {}, {f});
      const ValueId y = r.op(id, "op", {u}, slots(r, f), attrs, {f});
      r.output("y", r.op("linear", "down", {y}, {r.slot("d", {{h}, {f}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
}

TEST(Layout, DropoutOfADividedValueKnowsWhichElementsItHas) {
  for (const int64_t rank : {0, 1}) {
    Program program = behind_up("dropout", [](Recorder&, DimId) { return std::vector<SlotId>{}; }, {{"p", 0.1}});
    const TensorAxis axis(2, {"ffn"}, false, rank);
    const LayoutStrategy* stack[] = {&axis};
    apply_layout(program, stack);
    const auto op = std::ranges::find(program.blocks[0].ops, OpId("dropout"), &Op::id);
    ASSERT_NE(op, program.blocks[0].ops.end());
    EXPECT_EQ(std::get<int64_t>(*op->attr("first")), 4 * rank);
  }
}

TEST(Layout, DropoutKnowsWhichPositionsItHas) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId y = r.op("dropout", "op", {x}, {}, {{"p", 0.1}}, {h});
      const ValueId u = r.op("linear", "up", {y}, {r.slot("u", {{f}, {h}})}, {}, {f});
      r.output("y", r.op("linear", "down", {u}, {r.slot("d", {{h}, {f}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
  const TensorAxis axis(2, {"ffn"}, true, 1);
  const LayoutStrategy* stack[] = {&axis};
  apply_layout(program, stack);
  const auto op = std::ranges::find(program.blocks[0].ops, OpId("dropout"), &Op::id);
  ASSERT_NE(op, program.blocks[0].ops.end());
  EXPECT_EQ(std::get<int64_t>(*op->attr("query_part")), 1);
}

TEST(Layout, ARankScalesItsOwnChannels) {
  Program program =
      behind_up("channel_scale", [](Recorder& r, DimId f) { return std::vector<SlotId>{r.slot("c", {{f}})}; }, {});
  const TensorAxis axis(2, {"ffn"});
  const LayoutStrategy* stack[] = {&axis};
  const ProgramLayout layout = apply_layout(program, stack);
  const BlockType& block = program.blocks[0];
  const auto op = std::ranges::find(block.ops, OpId("channel_scale"), &Op::id);
  ASSERT_NE(op, block.ops.end());
  EXPECT_EQ(layout.local_shape(program, block.slots[op->params[0]]), std::vector<int64_t>{4});
  EXPECT_EQ(layout.local_shape(program, block.values[op->outputs[0]], {1, 3}), (std::vector<int64_t>{1, 3, 4}));
  EXPECT_TRUE(block.slots[op->params[0]].partial_over.empty());
}

// Gate and up share one ring, each shift lies before the products that hide it, and the sum for this rank comes last.
TEST(Layout, RingsShiftOneChunkWhileAnotherIsMultiplied) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 6), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const ValueId g = r.op("linear", "gate", {x}, {r.slot("g", {{f}, {h}})}, {}, {f});
      const ValueId a = r.op("activation", "act", {g}, {}, {{"function", std::string("silu")}}, {});
      const ValueId u = r.op("linear", "up", {x}, {r.slot("u", {{f}, {h}})}, {}, {f});
      r.output("y", r.op("linear", "down", {r.op("mul", "m", {a, u}, {}, {}, {})}, {r.slot("d", {{h}, {f}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
  const TensorAxis axis(3, {"ffn"}, true, 2, true);
  const LayoutStrategy* stack[] = {&axis};
  const ProgramLayout layout = apply_layout(program, stack);
  const BlockType& block = program.blocks[0];
  std::string ops;
  for (const Op& op : block.ops) {
    const AttrValue* part = op.attr("part");
    ops +=
        op.id.text().substr(op.id.text().find('.') + 1) + (part ? std::to_string(std::get<int64_t>(*part)) : "") + " ";
  }
  EXPECT_EQ(ops,
            "slice embedding shift linear linear put2 put2 shift linear linear put1 put1 linear linear put0 put0 "
            "activation mul chunk1 linear shift chunk0 linear sum shift chunk2 linear sum ");
  for (const Op& op : block.ops) {
    if (!op.spec().is_linear()) continue;
    EXPECT_EQ(op.attr_int("comm.chunks", 0), 3) << op.name;
    EXPECT_EQ(layout.local_shape(program, block.values[op.inputs[0]], {1, 7})[1], 3) << op.name;
    EXPECT_EQ(layout.local_shape(program, block.values[op.outputs[0]], {1, 7})[1], 3) << op.name;
  }
  const Op& up = *std::ranges::find(block.ops, "up.0", &Op::name);
  EXPECT_EQ(layout.local_shape(program, block.values[up.outputs[0]], {1, 7}), (std::vector<int64_t>{1, 3, 2}));
  EXPECT_EQ(layout.local_shape(program, block.values[block.outputs.at("y")], {1, 7}), (std::vector<int64_t>{1, 3, 2}));
}

// A product with padding must not be NaN, whatever was in its memory.
TEST(Layout, PaddingOfADividedParameterIsZero) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 5), h = r.dim("hidden", 64);
    const uint32_t block = r.block("b", [&] {
      r.output("y", r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
  const TensorAxis axis(2, {"vocab"}, false, 1);
  const LayoutStrategy* stack[] = {&axis};
  const ProgramLayout layout = apply_layout(program, stack);
  ParameterTable parameters(program, layout);
  parameters.place(parameters.mesh(), 1);
  const int64_t sizes[] = {3, 64};
  for (int i = 0; i < 16; ++i) Tensor::empty(sizes, Dtype::f32).fill(NAN);  // likely the same memory
  const ParameterStorage storage(parameters, Device{});
  const Tensor& shard = parameters.find("e")->shard;
  ASSERT_EQ(shard.sizes(), (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(shard.narrow(0, 2, 1).contiguous().sum_of_squares(), 0.0);
}

TEST(Layout, AContractionOfAnUndividedInputIsRefused) {
  EXPECT_HAS(layout_refusal(SmallModel{}.program(), TensorAxis(2, {"hidden"})), "axis 'tp' cannot divide block");
}

TEST(Layout, SequenceParallelismNeedsADividedVocabulary) {
  EXPECT_HAS(layout_refusal(SmallModel{}.program(), TensorAxis(2, {"ffn"}, true)),
             "cross_entropy 'loss' has logits divided along T, but whole labels; divide the vocabulary as well");
}

struct Heads {
  DimId heads, kv_heads, head_dim, hidden;
  ValueId x;  // [B, T, hidden]
};

// A block whose output `rest` computes from the embedding.
template <class Rest>
Program with_heads(int64_t heads, int64_t kv_heads, Rest rest) {
  return test::record([&](Recorder& r) {
    const DimId v = r.dim("vocab", 4), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      r.output("y", rest(r, Heads{r.dim("heads", heads), r.dim("kv_heads", kv_heads), r.dim("head_dim", 2), h, x}));
    });
    r.chain("c", "", {block});
  });
}

TEST(Layout, HeadsDividedForOnlyOneOfQueryAndKeyAreRefused) {
  const Program program = with_heads(4, 1, [](Recorder& r, const Heads& of) {
    const auto [n, k, d, h, x] = of;
    const ValueId q = r.op("linear", "q", {x}, {r.slot("q", {{n, d}, {h}})}, {}, {n, d});
    const ValueId key = r.op("linear", "k", {x}, {r.slot("k", {{k, d}, {h}})}, {}, {k, d});
    return r.op("attention", "a", {q, key, key});
  });
  EXPECT_HAS(layout_refusal(program, TensorAxis(2, {"heads"})),
             "attention 'a' has divided heads for only one of query and key");
}

TEST(Layout, RanksShareAKeyHead) {
  for (int64_t coordinate = 0; coordinate < 4; ++coordinate) {
    Program program = with_heads(8, 2, [](Recorder& r, const Heads& of) {
      const auto [n, k, d, h, x] = of;
      const ValueId q = r.op("linear", "q", {x}, {r.slot("q", {{n, d}, {h}})}, {}, {n, d});
      const ValueId key =
          r.op("linear", "k", {x}, {r.slot("k", {{k, d}, {h}}), r.slot("k_bias", {{k, d}})}, {}, {k, d});
      const ValueId normed = r.op("rms_norm", "norm", {key}, {r.slot("w", {{d}})}, {{"eps", 1e-6}}, {});
      const ValueId y = r.op("attention", "a", {q, normed, normed});
      return r.op("linear", "o", {y}, {r.slot("o", {{h}, {n, d}})}, {}, {h});
    });
    const TensorAxis axis(4, {"heads", "kv_heads"}, false, coordinate);
    const LayoutStrategy* stack[] = {&axis};
    const ProgramLayout layout = apply_layout(program, stack);
    const BlockType& block = program.blocks[0];
    const auto take = std::ranges::find(block.ops, CommOp::kTake, &Op::comm);
    ASSERT_NE(take, block.ops.end());
    EXPECT_EQ(take->attr_int("dim", -1), 2);
    EXPECT_EQ(take->attr_int("first", -1), coordinate / 2);
    const auto attention = std::ranges::find(block.ops, OpId("attention"), &Op::id);
    EXPECT_EQ(layout.local_shape(program, block.values[attention->inputs[0]], {1, 3}),
              (std::vector<int64_t>{1, 3, 2, 2}));
    EXPECT_EQ(layout.local_shape(program, block.values[attention->inputs[1]], {1, 3}),
              (std::vector<int64_t>{1, 3, 1, 2}));
    // Every rank has these whole, and a part of their gradients.
    for (const char* shared : {"k", "k_bias", "w"}) {
      const auto slot = std::ranges::find(block.slots, shared, &ParameterSlot::name);
      EXPECT_EQ(slot->sharding[0].kind, Sharding::Kind::kReplicate) << shared;
      EXPECT_EQ(slot->partial_over, std::vector<std::string>{"tp"}) << shared;
    }
  }
}

TEST(Layout, HeadsThatANormReadsAsOneAreDividedAfterIt) {
  Program program = with_heads(4, 4, [](Recorder& r, const Heads& of) {
    const auto [n, k, d, h, x] = of;
    const DimId all = r.dim("all_heads", 8);
    const ValueId q = r.op("linear", "q", {x}, {r.slot("q", {{all}, {h}})}, {}, {all});
    const ValueId normed = r.op("rms_norm", "norm", {q}, {r.slot("w", {{all}})}, {{"eps", 1e-6}}, {});
    const ValueId heads = r.op("reshape", "heads", {normed}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, n, d});
    const ValueId key = r.op("linear", "k", {x}, {r.slot("k", {{k, d}, {h}})}, {}, {k, d});
    return r.op("linear", "o", {r.op("attention", "a", {heads, key, key})}, {r.slot("o", {{h}, {n, d}})}, {}, {h});
  });
  const TensorAxis axis(2, {"heads", "kv_heads"}, false, 1);
  const LayoutStrategy* stack[] = {&axis};
  const ProgramLayout layout = apply_layout(program, stack);
  const BlockType& block = program.blocks[0];
  const auto split = std::ranges::find(block.ops, CommOp::kSplit, &Op::comm);
  ASSERT_NE(split, block.ops.end());
  EXPECT_EQ(split->attr_int("dim", -1), 2);
  const auto attention = std::ranges::find(block.ops, OpId("attention"), &Op::id);
  for (const size_t i : {0, 1})
    EXPECT_EQ(layout.local_shape(program, block.values[attention->inputs[i]], {1, 3}),
              (std::vector<int64_t>{1, 3, 2, 2}));
  // Every rank has these whole, and all of their gradients.
  for (const char* whole : {"q", "w"}) {
    const auto slot = std::ranges::find(block.slots, whole, &ParameterSlot::name);
    EXPECT_EQ(slot->sharding[0].kind, Sharding::Kind::kReplicate) << whole;
    EXPECT_TRUE(slot->partial_over.empty()) << whole;
  }
}

TEST(Layout, RanksDoNotShareWhatIsContracted) {
  EXPECT_HAS(layout_refusal(SmallModel{}.program(), TensorAxis(12, {"ffn"})),
             "axis 'tp' of size 12 cannot divide ffn = 6");
}

TEST(Layout, ASharedHeadIsNotScaledByChannel) {
  const Program program = with_heads(1, 1, [](Recorder& r, const Heads& of) {
    const auto [n, k, d, h, x] = of;
    const ValueId key = r.op("linear", "k", {x}, {r.slot("k", {{k, d}, {h}})}, {}, {k, d});
    return r.op("channel_scale", "ia3", {key}, {r.slot("s", {{k, d}})}, {}, {k, d});
  });
  EXPECT_HAS(layout_refusal(program, TensorAxis(2, {"kv_heads"})),
             "channel_scale 'ia3' needs all of 'kv_heads' on each rank, but its input is divided along it");
}

// The second of two ranks, which have different rows.
class ExpertAxis final : public LayoutStrategy {
 public:
  explicit ExpertAxis(std::vector<std::string> dims) : dims_(std::move(dims)) {}
  std::string axis() const override { return "ep"; }
  int64_t axis_size() const override { return 2; }
  int64_t coordinate() const override { return 1; }
  Division divide(const Program&) const override {
    Division division{.strategy = "parallel 'experts'"};
    for (const std::string& dim : dims_) division.dims.emplace(dim, false);
    return division;
  }

 private:
  std::vector<std::string> dims_;
};

TEST(Layout, AnOpCannotReadAPartOfAParameterForOtherRows) {
  const std::string error = layout_refusal(SmallModel{}.program(), ExpertAxis({"ffn"}));
  EXPECT_HAS(error,
             "parallel 'experts' along axis 'ep' cannot divide 'ffn' of block 'layer': op linear 'up' reads parameter "
             "'up.weight', of which each rank would have a part");
  EXPECT_HAS(error, "set mesh.ep = 1, or leave 'ffn' undivided");
}

TEST(Layout, AnAxisOfRowsDividesParametersButNoValues) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      r.slot("unread", {{f}, {h}});
      r.output("y", r.op("linear", "o", {x}, {r.slot("o", {{h}, {h}})}, {}, {h}));
    });
    r.chain("c", "", {block});
  });
  const ExpertAxis axis({"ffn"});
  const LayoutStrategy* stack[] = {&axis};
  const ProgramLayout layout = apply_layout(program, stack);
  const BlockType& block = program.blocks[0];
  EXPECT_EQ(ops_text(program), "embedding linear");
  for (const GraphValue& value : block.values) EXPECT_EQ(value.sharding, std::vector<Sharding>(1)) << value.name;
  for (const ParameterSlot& slot : block.slots) {
    EXPECT_EQ(slot.sharding[0].kind == Sharding::Kind::kShard, slot.name == "unread") << slot.name;
    EXPECT_TRUE(slot.partial_over.empty()) << slot.name;
  }
  const ParameterSlot& divided = *std::ranges::find(block.slots, "unread", &ParameterSlot::name);
  EXPECT_EQ(layout.local_shape(program, divided), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(layout.begin(program, divided), (std::vector<int64_t>{4, 0}));
}

TEST(Layout, AnOwnOpThatReadsAllOfAParameterMayHaveRowsOfItsOwn) {
  Program program = test::record([](Recorder& r) {
    const DimId v = r.dim("vocab", 4), f = r.dim("ffn", 8), h = r.dim("hidden", 2);
    const uint32_t block = r.block("b", [&] {
      const ValueId x = r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h});
      const SlotId w = r.slot("w", {{f}, {h}});
      r.output("y", r.own_op("mine/op", {x}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h}, std::nullopt, {w}));
    });
    r.chain("c", "", {block});
  });
  const ExpertAxis axis({"ffn"});
  const LayoutStrategy* stack[] = {&axis};
  apply_layout(program, stack);
  EXPECT_EQ(std::ranges::find(program.blocks[0].slots, "w", &ParameterSlot::name)->sharding, std::vector<Sharding>(1));
  EXPECT_EQ(ops_text(program), "embedding mine/op");
}

TEST(Layout, AnAxisThatDividesNothingIsNoneOfTheProgram) {
  Program program = SmallModel{}.program();
  const ExpertAxis axis({});
  const LayoutStrategy* stack[] = {&axis};
  EXPECT_TRUE(apply_layout(program, stack).axes.empty());
  EXPECT_TRUE(program.blocks[0].slots[0].sharding.empty());
}

TEST(Layout, TwoRanksComputeWhatOneDoes) {
  LoadedPlugins plugins;
  CpuRun whole(SmallModel{.layers = 3}.program(), {plugins.ops("reference")});
  const double loss = whole.step({fields_of(kIds, 2)});
  const auto expected = whole.gradients();

  const TensorAxis strategy(2, {"ffn"});
  ThreadedCollectives::Exchange meeting;
  auto rank_body = [&](int rank, OpsProvider provider) {
    const ThreadRoleScope role(ThreadRole::kStep);
    const CompiledProgram compiled =
        compile(SmallModel{.layers = 3}.program(), {.passes = {.layout = {&strategy}},
                                                    .resolve = {.batch = 2, .time = 3, .kernels = {provider}},
                                                    .recompute = Recompute::kFull});
    ParameterTable& parameters = compiled.parameters();
    const ParameterStorage storage(parameters, Device{});
    for (const auto& p : parameters.all()) p->value.copy_from(part_of(whole.parameters.find(p->name)->value, *p, rank));
    ThreadedCollectives collectives(meeting, rank);
    Executor executor(compiled, {.collectives = &collectives});
    parameters.start_step();
    EXPECT_NEAR(executor.forward(0, fields_of(kIds, 2), 1.0).item(), loss, 1e-5);
    executor.backward(0);
    for (const auto& p : parameters.all())
      EXPECT_LT(test::largest_difference(p->gradient, part_of(expected.at(p->name), *p, rank)), 1e-5) << p->name;
  };
  std::thread other(rank_body, 1, plugins.ops("reference"));
  rank_body(0, plugins.ops("reference"));
  other.join();
}

}  // namespace
}  // namespace chassis
