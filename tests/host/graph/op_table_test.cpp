// The operands, attributes and dims that each op accepts, and the table compared with chassis/op.h.
#include "host/graph/op_table.hpp"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <sstream>

#include "host/base/file.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::record_refusal;
using test::Recorder;

// Dims and values for the ops under test.
struct Operands {
  explicit Operands(Recorder& r) : r(r) {}
  Recorder& r;
  DimId hidden = r.dim("hidden", 8), heads = r.dim("heads", 4), kv = r.dim("kv_heads", 2), odd = r.dim("odd_heads", 3),
        head_dim = r.dim("head_dim", 6), vocab = r.dim("vocab", 16);
  ValueId value(const std::string& name, std::vector<DimId> dims) {
    dims.insert(dims.begin(), {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME});
    return r.input(name, dims);
  }
  ValueId x() { return value("x", {hidden}); }
};

std::string refusal_of(const std::function<void(Operands&)>& body) {
  return record_refusal([&](Recorder& r) {
    r.begin_block("b");
    Operands operands(r);
    body(operands);
    r.output("out", operands.x());
    r.end_block();
    const uint32_t unused = r.block("unused", [&] { r.output("ids", r.field("input_ids")); });
    r.chain("c", "", {unused});
  });
}

TEST(OpRules, LinearContractsTheLastDims) {
  EXPECT_EQ(
      refusal_of([](Operands& b) {
        b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.heads, b.head_dim}, {b.hidden}})}, {}, {b.heads, b.head_dim});
      }),
      "");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("linear", "o", {b.x()}, {b.r.slot("o", {{b.hidden}, {b.heads, b.head_dim}})});
             }),
             "block 'b', op linear 'o': input does not end in the dims that weight 'o' contracts");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.vocab}, {b.hidden}})}, {}, {b.hidden});
             }),
             "axis 0 of parameter 'q' must be [hidden=8]");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.hidden}})}); }),
             "weight 'q' must have two axes");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("linear", "q", {b.x()}, {b.r.slot("q", {{b.vocab}, {b.hidden}}), b.r.slot("c", {{b.hidden}})});
             }),
             "axis 0 of parameter 'c' must be [vocab=16]");
}

TEST(OpRules, OperandsAreCounted) {
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("add", "sum", {b.x()}); }), "op add 'sum': takes 2 inputs, got 1");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("score", "n", {b.x()}); }), "op score 'n': takes 1 parameter, got 0");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("add", "sum", {CHASSIS_ABSENT, b.x()}); }), "input 0 is required");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("linear", "q", {b.x()}); }), "takes 1 to 2 parameters, got 0");
}

TEST(OpRules, DimsMustAgree) {
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("add", "sum", {b.x(), b.value("y", {b.vocab})});
             }),
             "op add 'sum': input 1 is [B, T, vocab=16], expected [B, T, hidden=8]");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("rms_norm", "n", {b.x()}, {b.r.slot("n", {{b.vocab}})}, {{"eps", 1e-6}});
             }),
             "axis 0 of parameter 'n' must be [hidden=8]");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("rms_norm", "n", {b.x()}, {b.r.slot("n", {{b.hidden}})}); }),
             "attribute eps is missing");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("embedding", "e", {b.x()}, {b.r.slot("e", {{b.vocab}, {b.hidden}})});
             }),
             "op embedding 'e': input 0 must be ids");
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("cross_entropy", "l", {b.x(), b.x()});
             }),
             "input 1 is [B, T, hidden=8], expected [B, T]");
}

TEST(OpRules, RopeNeedsOneFrequencyForTwoDims) {
  auto rope = [](Operands& b, OpAttrs attrs) {
    b.r.op("rope", "rope", {b.value("q", {b.heads, b.head_dim}), b.r.field("positions")}, {}, attrs);
  };
  EXPECT_EQ(refusal_of([&](Operands& b) { rope(b, {{"inv_freq", std::vector<double>{1, 2, 3}}}); }), "");
  EXPECT_HAS(refusal_of([&](Operands& b) {
               rope(b, {{"inv_freq", std::vector<double>{1, 2}}});
             }),
             "head_dim 6 needs 3 values of inv_freq, got 2");
  EXPECT_HAS(refusal_of([&](Operands& b) { rope(b, {}); }), "attribute inv_freq is missing");
}

TEST(OpRules, KeyValueHeadsAreSharedEvenly) {
  auto attention = [](Operands& b, DimId kv, DimId kdim) {
    b.r.op("attention", "a",
           {b.value("q", {b.heads, b.head_dim}), b.value("k", {kv, kdim}), b.value("v", {kv, b.head_dim})});
  };
  EXPECT_EQ(refusal_of([&](Operands& b) { attention(b, b.kv, b.head_dim); }), "");
  EXPECT_HAS(refusal_of([&](Operands& b) { attention(b, b.odd, b.head_dim); }),
             "4 heads cannot share 3 key-value heads evenly");
  EXPECT_HAS(refusal_of([&](Operands& b) { attention(b, b.kv, b.hidden); }), "query and key differ in their last dim");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("attention", "a", {b.x(), b.x(), b.x()}); }), "expected 4 dims");
}

TEST(OpRules, ReshapeKeepsTheSize) {
  EXPECT_HAS(refusal_of([](Operands& b) {
               b.r.op("reshape", "r", {b.x()}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, b.vocab});
             }),
             "cannot view [B, T, hidden=8] as [B, T, vocab=16]");
}

TEST(OpRules, OwnOpsDeclareDimsThatTheyHave) {
  const auto refused = [](const std::string& id, const std::vector<std::string>& mixed, uint32_t dtype = 0,
                          bool keeps_hidden = true) {
    return refusal_of([&](Operands& b) {
      std::vector<DimId> mixes, dims = {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME};
      for (const std::string& dim : mixed)
        mixes.push_back(dim == "B"       ? CHASSIS_DIM_BATCH
                        : dim == "T"     ? CHASSIS_DIM_TIME
                        : dim == "vocab" ? b.vocab
                                         : b.hidden);
      if (keeps_hidden) dims.push_back(b.hidden);
      b.r.own_op(id, {b.x()}, dims, mixes, {}, dtype);
    });
  };
  EXPECT_EQ(refused("mine/op", {}), "");
  EXPECT_EQ(refused("mine/op", {"T", "hidden"}, CHASSIS_DTYPE_F32), "");
  EXPECT_HAS(refused("mine/op", {"B"}), "block 'b', op mine/op 'mine/op': mixed_dims has B, but rows are divided");
  EXPECT_HAS(refused("mine/op", {"vocab"}), "mixed_dims has 'vocab', which no operand has");
  EXPECT_HAS(refused("mine/op", {}, CHASSIS_DTYPE_F64), "the output_dtype");
  EXPECT_HAS(refused("mine/op", {}, 0, false), "its input has 'hidden', which its output lacks: list it in mixed_dims");
  EXPECT_EQ(refused("mine/op", {"hidden"}, 0, false), "");
  EXPECT_HAS(refused("scale", {}), "only a plugin's own op, \"domain/name\", declares mixed_dims or output_dtype");
}

TEST(OpRules, UnknownOpsNeedADomain) {
  const std::string text = refusal_of([](Operands& b) { b.r.op("swish", "s", {b.x()}); });
  EXPECT_HAS(text, "block 'b', op swish 's': no such op; a plugin's own op is named \"domain/name\"");
  EXPECT_EQ(refusal_of([](Operands& b) {
              b.r.op("mine/swish", "s", {b.x()}, {}, {}, {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, b.hidden});
            }),
            "");
}

// The message that refuses a rope with these attributes; "" if it is accepted.
std::string rope_refusal(OpAttrs attrs) {
  return refusal_of([&](Operands& b) {
    const ValueId x = b.value("q", {b.heads, b.head_dim});
    b.r.op("rope", "rope", {x, b.r.field("positions")}, {}, attrs);
  });
}

TEST(OpRules, RopeMayRotateTheFirstDimsOnly) {
  const std::vector<double> two = {1, 0.5}, three = {1, 0.5, 0.25};
  EXPECT_EQ(rope_refusal({{"inv_freq", two}, {"rotary_dim", int64_t{4}}}), "");
  EXPECT_HAS(rope_refusal({{"inv_freq", two}}), "head_dim 6 needs 3 values of inv_freq, got 2");
  EXPECT_HAS(rope_refusal({{"inv_freq", three}, {"rotary_dim", int64_t{4}}}),
             "rotary_dim 4 needs 2 values of inv_freq, got 3");
  for (const int64_t size : {0, 3, 8})
    EXPECT_HAS(rope_refusal({{"inv_freq", two}, {"rotary_dim", size}}),
               "rotary_dim " + std::to_string(size) + " is not an even number from 2 to head_dim 6");
}

TEST(OpRules, RopeTakesLongFrequenciesWithThePositionWhereTheyBegin) {
  const std::vector<double> two = {1, 0.5}, three = {1, 0.5, 0.25};
  EXPECT_EQ(rope_refusal({{"inv_freq", three}, {"long_inv_freq", three}, {"long_from", int64_t{32}}}), "");
  EXPECT_HAS(rope_refusal({{"inv_freq", three}, {"long_inv_freq", three}}),
             "long_inv_freq and long_from need each other");
  EXPECT_HAS(rope_refusal({{"inv_freq", three}, {"long_inv_freq", two}, {"long_from", int64_t{32}}}),
             "head_dim 6 needs 3 values of long_inv_freq, got 2");
}

TEST(OpRules, CapsAreNumbersAboveZero) {
  const auto softcap = [](OpAttrs attrs) {
    return refusal_of([&](Operands& b) { b.r.op("softcap", "cap", {b.x()}, {}, attrs); });
  };
  EXPECT_EQ(softcap({{"cap", 30.0}}), "");
  EXPECT_HAS(softcap({}), "attribute cap is missing");
  EXPECT_HAS(softcap({{"cap", 0.0}}), "attribute cap must be a number above 0");
  EXPECT_HAS(softcap({{"cap", int64_t{30}}}), "attribute cap is not a number");
  const auto attention = [](double cap) {
    return refusal_of([&](Operands& b) {
      const ValueId q = b.value("q", {b.heads, b.head_dim}), k = b.value("k", {b.kv, b.head_dim});
      b.r.op("attention", "attention", {q, k, k}, {}, {{"scale", 1.0}, {"softcap", cap}});
    });
  };
  EXPECT_EQ(attention(50.0), "");
  EXPECT_HAS(attention(-1.0), "attribute softcap must be a number above 0");
  EXPECT_HAS(refusal_of([](Operands& b) { b.r.op("scale", "scale", {b.x()}); }), "attribute factor is missing");
}

TEST(OpRules, LimitsAndFloorScalesAreNumbersAboveZero) {
  const auto clip = [](OpAttrs attrs) {
    return refusal_of([&](Operands& b) { b.r.op("clip", "clip", {b.x()}, {}, attrs); });
  };
  EXPECT_EQ(clip({{"limit", 2.0}}), "");
  EXPECT_HAS(clip({}), "attribute limit is missing");
  EXPECT_HAS(clip({{"limit", -2.0}}), "attribute limit must be a number above 0");
  const auto position_scale = [](double floor_scale, const char* field) {
    return refusal_of([&](Operands& b) {
      const ValueId positions = field == nullptr ? b.x() : b.r.field(field);
      b.r.op("position_scale", "scale", {b.x(), positions}, {}, {{"floor_scale", floor_scale}, {"attn_scale", 0.1}});
    });
  };
  EXPECT_EQ(position_scale(4, "positions"), "");
  EXPECT_HAS(position_scale(0, "positions"), "attribute floor_scale must be a number above 0");
  EXPECT_HAS(position_scale(4, nullptr), "input 1 is [B, T, hidden=8], expected [B, T]");
}

TEST(OpRules, APlainRmsNormHasNoWeight) {
  const auto norm = [](bool weight, OpAttrs attrs) {
    return refusal_of([&](Operands& b) {
      attrs.emplace_back("eps", 1e-5);
      std::vector<SlotId> params;
      if (weight) params.push_back(b.r.slot("weight", {{b.hidden}}));
      b.r.op("rms_norm", "norm", {b.x()}, params, attrs);
    });
  };
  const std::pair<std::string, AttrValue> plain = {"plain", int64_t{1}};
  EXPECT_EQ(norm(true, {}), "");
  EXPECT_EQ(norm(false, {plain}), "");
  EXPECT_HAS(norm(true, {plain}), "is plain, but has a weight");
  EXPECT_HAS(norm(false, {}), "has no weight, but is not plain");
  EXPECT_HAS(norm(false, {plain, {"offset", 1.0}}), "is plain, but its weight has an offset");
}

// {op: {attribute: its letter}} as the table in chassis/op.h says.
std::map<std::string, std::map<std::string, std::string>> documented_attributes() {
  std::map<std::string, std::map<std::string, std::string>> out;
  std::string text = read_file(CHASSIS_TEST_SOURCE_DIR "/sdk/include/chassis/op.h", 1 << 20);
  const std::string dots = "…";  // one column, three bytes
  for (size_t at = 0; (at = text.find(dots, at)) != std::string::npos;) text.replace(at, dots.size(), ".");
  const size_t head = text.find(" *   op  ");
  const size_t column = text.find("attributes", head) - head;
  const std::regex op(R"(^ \*   ([a-z_]+)(, ([a-z_]+))? .*)"),
      attribute(R"((?:^|, )([a-z_]+) (floats|f|i|s)\??(?=[,: (]|$))");
  std::vector<std::string> ops;
  std::istringstream lines(text.substr(text.find('\n', head) + 1));
  for (std::string line; std::getline(lines, line) && line.find(" * A plugin's own op") != 0;) {
    std::smatch found;
    if (std::regex_match(line, found, op)) {
      ops = {found[1]};
      if (found[3].matched) ops.push_back(found[3]);
      for (const std::string& id : ops) out[id];
    }
    if (line.size() <= column || line[column - 1] != ' ') continue;
    const std::string rest = line.substr(column);
    for (std::sregex_iterator it(rest.begin(), rest.end(), attribute), end; it != end; ++it)
      for (const std::string& id : ops) out[id][(*it)[1]] = (*it)[2];
  }
  return out;
}

TEST(OpTable, ItsOpsAndAttributesAreThoseOfTheHeader) {
  std::map<std::string, std::map<std::string, std::string>> rows;
  for (const OpSpec& spec : op_table()) {
    auto& attributes = rows[std::string(spec.id)];
    for (const AttrSpec& attr : spec.attrs)
      attributes[std::string(attr.name)] = attr.tag == CHASSIS_ATTR_INT      ? "i"
                                           : attr.tag == CHASSIS_ATTR_FLOAT  ? "f"
                                           : attr.tag == CHASSIS_ATTR_STRING ? "s"
                                                                             : "floats";
  }
  EXPECT_EQ(rows, documented_attributes());
}

}  // namespace
}  // namespace chassis
