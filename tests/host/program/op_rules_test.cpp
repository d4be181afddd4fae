#include <gtest/gtest.h>

#include "tests/host/program/recorder.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using test::record_refusal;
using test::Recorder;

// A block with the values and dims that rules are about.
struct Bench {
  explicit Bench(Recorder& r) : r(r) {}
  Recorder& r;
  DimId hidden = r.dim("hidden", 8), heads = r.dim("heads", 4), kv = r.dim("kv_heads", 2), odd = r.dim("odd_heads", 3),
        head_dim = r.dim("head_dim", 6), vocab = r.dim("vocab", 16);
  ValueId value(const std::string& name, std::vector<DimId> behind) {
    behind.insert(behind.begin(), {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
    return r.input(name, behind);
  }
  ValueId x() { return value("x", {hidden}); }
};

std::string said(const std::function<void(Bench&)>& body) {
  return record_refusal([&](Recorder& r) {
    r.begin_block("b");
    Bench bench(r);
    body(bench);
    r.output("out", bench.x());
    r.end_block();
    const uint32_t unused = r.block("unused", [&] { r.output("ids", r.field("input_ids")); });
    r.chain("c", "", {unused});
  });
}

TEST(OpRules, LinearContractsTheLastDims) {
  EXPECT_EQ(
      said([](Bench& b) {
        b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.heads, b.head_dim}, {b.hidden}})}, {}, {b.heads, b.head_dim});
      }),
      "");
  EXPECT_HAS(said([](Bench& b) {
               b.r.op("linear", "o", {b.x()}, {b.r.slot("o", {{b.hidden}, {b.heads, b.head_dim}})});
             }),
             "block 'b', op linear 'o': input does not end in the dims that weight 'o' contracts");
  EXPECT_HAS(said([](Bench& b) {
               b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.vocab}, {b.hidden}})}, {}, {b.hidden});
             }),
             "axis 0 of parameter 'q' must be [hidden=8]");
  EXPECT_HAS(said([](Bench& b) { b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.hidden}})}); }),
              "weight 'q' must have two axes");
  EXPECT_HAS(said([](Bench& b) {
                b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.vocab}, {b.hidden}}), b.r.slot("c", {{b.hidden}})});
              }),
              "axis 0 of parameter 'c' must be [vocab=16]");
}

TEST(OpRules, OperandsAreCounted) {
  EXPECT_HAS(said([](Bench& b) { b.r.op("add", "sum", {b.x()}); }), "op add 'sum': takes 2 inputs, got 1");
  EXPECT_HAS(said([](Bench& b) { b.r.op("rms_norm", "n", {b.x()}); }),
              "op rms_norm 'n': takes 1 parameters, got 0");
  EXPECT_HAS(said([](Bench& b) { b.r.op("add", "sum", {CHASSIS_ABSENT, b.x()}); }), "input 0 is required");
  EXPECT_HAS(said([](Bench& b) { b.r.op("linear", "q", {b.x()}); }), "takes 1 to 2 parameters, got 0");
}

TEST(OpRules, DimsMustAgree) {
  EXPECT_HAS(said([](Bench& b) { b.r.op("add", "sum", {b.x(), b.value("y", {b.vocab})}); }),
              "op add 'sum': input 1 is [B, T, vocab=16], expected [B, T, hidden=8]");
  EXPECT_HAS(said([](Bench& b) { b.r.op("rms_norm", "n", {b.x()}, {b.r.slot("n", {{b.vocab}})}); }),
              "axis 0 of parameter 'n' must be [hidden=8]");
  EXPECT_HAS(said([](Bench& b) { b.r.op("embedding", "e", {b.x()}, {b.r.slot("e", {{b.vocab}, {b.hidden}})}); }),
              "op embedding 'e': input 0 must be ids");
  EXPECT_HAS(said([](Bench& b) { b.r.op("cross_entropy", "l", {b.x(), b.x()}); }),
              "input 1 is [B, T, hidden=8], expected [B, T]");
}

TEST(OpRules, RopeNeedsHalfAFrequencyPerDim) {
  auto rope = [](Bench& b, Attrs attrs) {
    b.r.op("rope", "rope", {b.value("q", {b.heads, b.head_dim}), b.r.field("positions")}, {}, attrs);
  };
  EXPECT_EQ(said([&](Bench& b) { rope(b, {{"inv_freq", std::vector<double>{1, 2, 3}}}); }), "");
  EXPECT_HAS(said([&](Bench& b) { rope(b, {{"inv_freq", std::vector<double>{1, 2}}}); }),
              "head_dim 6 needs 3 inv_freq, got 2");
  EXPECT_HAS(said([&](Bench& b) { rope(b, {}); }), "attribute inv_freq is missing");
}

TEST(OpRules, KeyValueHeadsAreSharedEvenly) {
  auto attention = [](Bench& b, DimId kv, DimId kdim) {
    b.r.op("attention", "a",
           {b.value("q", {b.heads, b.head_dim}), b.value("k", {kv, kdim}), b.value("v", {kv, b.head_dim})});
  };
  EXPECT_EQ(said([&](Bench& b) { attention(b, b.kv, b.head_dim); }), "");
  EXPECT_HAS(said([&](Bench& b) { attention(b, b.odd, b.head_dim); }),
             "4 heads can not share 3 key-value heads evenly");
  EXPECT_HAS(said([&](Bench& b) { attention(b, b.kv, b.hidden); }), "query and key differ in their last dim");
  EXPECT_HAS(said([](Bench& b) { b.r.op("attention", "a", {b.x(), b.x(), b.x()}); }), "expected 4 dims");
}

TEST(OpRules, ReshapeKeepsTheSize) {
  EXPECT_HAS(said([](Bench& b) {
               b.r.op("reshape", "r", {b.x()}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, b.vocab});
             }),
             "can not view [B, T, hidden=8] as [B, T, vocab=16]");
}

TEST(OpRules, UnknownOpsNeedADomain) {
  const std::string text = said([](Bench& b) { b.r.op("swish", "s", {b.x()}); });
  EXPECT_HAS(text, "block 'b', op swish 's': no such op; a plugin's own op is named \"domain/name\"");
  EXPECT_EQ(said([](Bench& b) {
              b.r.op("mine/swish", "s", {b.x()}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, b.hidden});
            }),
            "");
}

}  // namespace
}  // namespace chassis
