// Programs that the builder accepts, and programs that it refuses.
#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::record;
using test::record_refusal;
using test::Recorder;
using test::SmallModel;

constexpr DimId kB = CHASSIS_DIM_BATCH, kT = CHASSIS_DIM_TIME;

TEST(Record, KeepsChainsBlocksAndOpsInTheirOrder) {
  const Program program = SmallModel{.layers = 3}.program();
  ASSERT_EQ(program.chains.size(), 3u);
  EXPECT_EQ(program.num_units(), 5u);
  EXPECT_EQ(program.chains[1].parameter_name(2, program.blocks[1].slots[1]), "layers.2.up.weight");
  EXPECT_EQ(program.chains[2].parameter_name(0, program.blocks[2].slots[0]), "lm_head.weight");
  EXPECT_EQ(program.last_block(), &program.blocks[2]);
  EXPECT_EQ(Program{}.last_block(), nullptr);
  std::vector<std::string> ids;
  for (const Op& op : program.blocks[1].ops) ids.push_back(op.id.text());
  EXPECT_EQ(ids, (std::vector<std::string>{"rms_norm", "linear", "activation", "linear", "add"}));
  EXPECT_EQ(program.dims_text(program.blocks[1].values.back().dims), "[B, T, hidden=4]");
}

TEST(Record, ADimIsBoundedOrNot) {
  const auto declared = [](bool fixed_first, int64_t size) {
    return record_refusal([=](Recorder& r) {
      fixed_first ? r.dim("patches", 4) : r.bounded_dim("patches", 4);
      r.bounded_dim("patches", size);
      r.chain("only", "", {r.block("b", [&] { r.output("ids", r.field("input_ids")); })});
    });
  };
  EXPECT_EQ(declared(false, 4), "");
  EXPECT_HAS(declared(false, 5), "dim 'patches' is declared with size 4 and again with 5");
  EXPECT_HAS(declared(true, 4), "dim 'patches' is declared both with a maximum and without one");
  EXPECT_HAS(declared(false, 0), "dim 'patches' has size 0, expected at least 1");
}

TEST(Record, ABlockMustReadOutputsOfTheBlockBefore) {
  auto two_blocks = [](bool rename, bool reshape) {
    return record_refusal([=](Recorder& r) {
      const DimId v = r.dim("vocab", 4), h = r.dim("hidden", 2), w = r.dim("wide", 3);
      const uint32_t a = r.block("a", [&] {
        r.output(rename ? "stream" : "hidden",
                 r.op("embedding", "e", {r.field("input_ids")}, {r.slot("e", {{v}, {h}})}, {}, {h}));
      });
      const uint32_t b = r.block("b", [&] { r.output("hidden", r.input("hidden", {kB, kT, reshape ? w : h})); });
      r.chain("a", "", {a});
      r.chain("b", "b", {b});
    });
  };
  EXPECT_EQ(two_blocks(false, false), "");
  EXPECT_HAS(two_blocks(true, false), "block 'b' reads 'hidden', but the block before, 'a', has no such output");
  EXPECT_HAS(two_blocks(false, true),
             "block 'b' reads 'hidden' as [B, T, wide=3], but block 'a' outputs [B, T, hidden=2]");
  EXPECT_HAS(record_refusal([](Recorder& r) {
               const DimId h = r.dim("hidden", 2);
               r.chain("only", "", {r.block("b", [&] { r.output("hidden", r.input("hidden", {kB, kT, h})); })});
             }),
             "block 'b' reads 'hidden', but there is no block before it");
}

std::string with_slots(const std::function<void(Recorder&, DimId, DimId)>& slots, size_t count = 1,
                       const std::string& prefix = "m.{i}") {
  return record_refusal([&](Recorder& r) {
    const DimId v = r.dim("vocab", 4), h = r.dim("hidden", 2);
    const uint32_t block = r.block("block", [&] {
      slots(r, v, h);
      r.output("ids", r.field("input_ids"));
    });
    r.chain("chain", prefix, std::vector<uint32_t>(count, block));
  });
}

TEST(Record, ATieNeedsAParameterOfTheSameShape) {
  EXPECT_EQ(with_slots([](Recorder& r, DimId v, DimId h) {
              r.slot("a", {{v}, {h}});
              r.slot("b", {{v}, {h}}, {.tied_to = "m.0.a"});
            }),
            "");
  EXPECT_HAS(with_slots([](Recorder& r, DimId v, DimId h) {
               r.slot("b", {{v}, {h}}, {.tied_to = "m.0.a"});
             }),
             "parameter 'm.0.b' is tied to 'm.0.a', which does not exist");
  EXPECT_HAS(with_slots([](Recorder& r, DimId v, DimId h) {
               r.slot("a", {{v}, {h}});
               r.slot("b", {{h}, {v}}, {.tied_to = "m.0.a"});
             }),
             "parameter 'm.0.b' is tied to 'm.0.a' of another shape");
}

TEST(Record, ParameterNamesAreUnique) {
  EXPECT_HAS(with_slots([](Recorder& r, DimId v, DimId) {
               r.slot("w", {{v}});
               r.slot("w", {{v}});
             }),
             "block 'block' declares parameter 'w' twice");
  EXPECT_HAS(record_refusal([](Recorder& r) {
               const DimId h = r.dim("hidden", 2);
               const uint32_t block = r.block("block", [&] {
                 r.slot("w", {{h}});
                 r.output("ids", r.field("input_ids"));
               });
               r.chain("a", "m", {block});
               r.chain("b", "m", {block});
             }),
             "parameter 'm.w' exists twice");
  EXPECT_HAS(with_slots([](Recorder&, DimId, DimId) {}, 2, "m"),
             "chain 'chain' has 2 blocks, but its prefix 'm' has no {i}");
}

TEST(Record, ADimHasOneSize) {
  EXPECT_HAS(record_refusal([](Recorder& r) { r.dim("heads", 4), r.dim("heads", 8); }),
             "dim 'heads' is declared with size 4 and again with 8");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.dim("heads", 0); }), "dim 'heads' has size 0, expected at least 1");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.block("b", [&] { r.slot("w", {{77}}); }); }), "no dim 77 was declared");
}

TEST(Record, ABlockMustBeginAndEnd) {
  EXPECT_HAS(record_refusal([](Recorder& r) { r.begin_block("a"), r.begin_block("b"); }),
             "block 'b' begins inside block 'a'");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.begin_block("a"); }), "block 'a' was begun but not ended");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.block("a", [] {}); }), "block 'a' has no output");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.field("labels"); }),
             "nothing can be recorded outside begin_block and end_block");
  EXPECT_HAS(record_refusal([](Recorder&) {}), "the model recorded no chain");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.chain("layers", "", {}); }), "chain 'layers' has no block");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.chain("layers", "", {3}); }),
             "chain 'layers' names block type 3, which does not exist");
}

TEST(Record, KeepsTheFieldsThatABatchMustHave) {
  const auto refusal = [](uint32_t dtype, const std::vector<DimId>& dims) {
    return record_refusal([&](Recorder& r) {
      r.block("a", [&] { r.output("x", r.field("lens", CHASSIS_DTYPE_I32, {kB})); });
      r.block("b", [&] { r.field("lens", dtype, dims); });
    });
  };
  EXPECT_HAS(refusal(CHASSIS_DTYPE_I64, {kB}), "block 'b', field 'lens': the dtype ");
  EXPECT_HAS(refusal(CHASSIS_DTYPE_I32, {kB, 9}), "no dim 9 was declared");
  EXPECT_HAS(refusal(CHASSIS_DTYPE_F32, {kB, kT}),
             "block 'b', field 'lens': it is f32 [B, T] here, but i32 [B] in an earlier declaration");
  const Program program = SmallModel{}.program();
  ASSERT_TRUE(program.fields.contains("labels"));
  EXPECT_EQ(program.field_text(program.fields.at("labels")), "i32 [B, T]");
}

TEST(Record, OperandsMustExist) {
  EXPECT_HAS(record_refusal([](Recorder& r) { r.block("b", [&] {
                                                r.op("add", "sum", {0, 9});
                                              }); }),
             "block 'b', op 'sum': there is no value 0");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.block("b", [&] { r.op("linear", "q", {r.field("labels")}, {5}); }); }),
             "block 'b', op 'q': there is no parameter 5");
  EXPECT_HAS(record_refusal([](Recorder& r) { r.block("b", [&] { r.output("x", 3); }); }),
             "output 'x' names value 3, which does not exist");
}

TEST(Record, AnErrorOfTheModelKeepsItsMessage) {
  EXPECT_HAS(record_refusal([](Recorder&) { throw plugin_error("rope type 'yarn' is not supported"); }),
             "recording the model: rope type 'yarn' is not supported");
}

}  // namespace
}  // namespace chassis
