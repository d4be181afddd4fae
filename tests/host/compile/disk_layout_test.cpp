// A model's declaration of its files must be exact; an error names the tensors at fault.
#include "host/compile/disk_layout.hpp"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::record;
using test::Recorder;

// Parameters embed [6, 4], and for two layers qkv [8, 4], down [4, 3], experts [2, 3, 4].
Program small_program() {
  return record([](Recorder& r) {
    const DimId v = r.dim("vocab", 6), h = r.dim("hidden", 4), q = r.dim("qkv", 8), f = r.dim("ffn", 3),
                e = r.dim("experts", 2);
    const uint32_t embed = r.block("embed", [&] {
      r.output("hidden", r.op("embedding", "embed", {r.field("input_ids")}, {r.slot("embed", {{v}, {h}})}, {}, {h}));
    });
    const uint32_t layer = r.block("layer", [&] {
      r.slot("qkv", {{q}, {h}});
      r.slot("down", {{h}, {f}});
      r.slot("experts", {{e}, {f}, {h}});
      r.output("hidden", r.input("hidden", {CHASSIS_DIM_BATCH, CHASSIS_DIM_TIME, h}));
    });
    r.chain("embed", "", {embed});
    r.chain("layers", "layers.{i}", {layer, layer});
  });
}

struct Part {
  std::string parameter;
  std::vector<int64_t> begin = {}, sizes = {};
};

// The sink of a plugin, with exceptions instead of statuses.
struct Sink {
  const chassis_disk_sink_t* raw;

  void tensor(const std::string& name, const std::vector<Part>& parts, uint32_t join_dim = 0,
              const std::vector<uint32_t>& dims = {}) const {
    std::vector<chassis_disk_part_t> list;
    for (const Part& part : parts)
      list.push_back({sizeof(chassis_disk_part_t), static_cast<uint32_t>(part.begin.size()), str_of(part.parameter),
                      part.begin.data(), part.sizes.data()});
    std::vector<const chassis_disk_part_t*> pointers;
    for (const auto& part : list) pointers.push_back(&part);
    const chassis_disk_rule_t rule = {sizeof rule, static_cast<uint32_t>(list.size()), str_of(name), pointers.data(),
                                      join_dim,    static_cast<uint32_t>(dims.size()), dims.data()};
    throw_if_failed(raw->tensor(raw, &rule), "tensor");
  }
  void literal(const std::string& name, const std::vector<int64_t>& sizes, const std::vector<float>& values) const {
    const chassis_literal_t literal = {sizeof literal, CHASSIS_DTYPE_F32, str_of(name),
                                       sizes.data(),   sizes.size(),      values.data()};
    throw_if_failed(raw->literal(raw, &literal), "literal");
  }
  void skip(const std::string& pattern) const { throw_if_failed(raw->skip(raw, str_of(pattern)), "skip"); }
  void alias(const std::string& pattern, const std::string& name) const {
    throw_if_failed(raw->alias(raw, str_of(pattern), str_of(name)), "alias");
  }
};

using Declare = std::function<void(const Sink&)>;

DiskLayout map(const Declare& declare, const std::vector<std::string>& left_out = {}) {
  Program program = small_program();
  program.left_out = left_out;
  const ParameterTable parameters(program, {});
  return record_disk_mapping(parameters,
                             [&](const chassis_disk_sink_t* sink) { return guarded([&] { declare({sink}); }); });
}

std::string refusal(const Declare& declare, const std::vector<std::string>& left_out = {}) {
  try {
    map(declare, left_out);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// "disk [8, 4] at [0, 0]: [0:8, 0:4] by 0 1"
std::string text_of(const StoredPart& part) {
  std::string text = part.disk_name + " " + chassis::text(part.disk_shape) + " at " + chassis::text(part.disk_begin) +
                     ": " + chassis::text(part.box) + " by";
  for (const int dim : part.dims) text += " " + std::to_string(dim);
  return text;
}

TEST(DiskLayout, WithoutARuleAParameterIsATensorOfItsName) {
  const DiskLayout mapping = map([](const Sink&) {});
  ASSERT_EQ(mapping.parts("layers.1.qkv").size(), 1u);
  EXPECT_EQ(text_of(mapping.parts("layers.1.qkv")[0]), "layers.1.qkv [8, 4] at [0, 0]: [0:8, 0:4] by 0 1");
  EXPECT_EQ(mapping.name_of("anything"), "anything");
}

TEST(DiskLayout, SkipsWhatTheProgramLeavesOut) {
  const std::vector<std::string> left_out = {"head.0.weight", "other"};
  const DiskLayout mapping = map([](const Sink& m) { m.tensor("h.{i}.out", {{"head.{i}.weight"}}); }, left_out);
  for (const char* name : {"h.0.out", "h.0.out.absmax", "other"}) {
    EXPECT_EQ(mapping.name_of(name), "") << name;
    EXPECT_TRUE(mapping.leaves_out(name)) << name;
  }
  for (const char* name : {"embed", "h.0.output", "head.0.weight"}) {
    EXPECT_EQ(mapping.name_of(name), name);
    EXPECT_FALSE(mapping.leaves_out(name)) << name;
  }
}

TEST(DiskLayout, CannotLeaveOutAPartOfATensor) {
  for (const auto& [first, second] : {std::pair("embed", "other"), std::pair("other", "embed")}) {
    const auto join = [&](const Sink& m) { m.tensor("joined", {{first}, {second}}); };
    EXPECT_HAS(refusal(join, {"other"}), "'joined' on disk joins parameters, of which this run leaves out 'other'");
  }
}

TEST(DiskLayout, SlicesJoinsPermutesAndDropsDims) {
  const DiskLayout mapping = map([](const Sink& m) {
    m.tensor("h.{i}.q", {{"layers.{i}.qkv", {0}, {4}}});
    m.tensor("h.{i}.kv", {{"layers.{i}.qkv", {4}, {0}}});
    m.tensor("h.{i}.down", {{"layers.{i}.down"}}, 0, {1, 0});
    for (int64_t e = 0; e < 2; ++e)
      m.tensor("h.{i}.experts." + std::to_string(e), {{"layers.{i}.experts", {e}, {1}}}, 0, {2, 1});
    m.tensor("joined", {{"embed", {0}, {1}}, {"embed", {2}, {4}}, {"embed", {1}, {1}}}, 0, {1, 0});
  });
  EXPECT_EQ(text_of(mapping.parts("layers.1.qkv")[0]), "h.1.q [4, 4] at [0, 0]: [0:4, 0:4] by 0 1");
  EXPECT_EQ(text_of(mapping.parts("layers.1.qkv")[1]), "h.1.kv [4, 4] at [0, 0]: [4:8, 0:4] by 0 1");
  EXPECT_EQ(text_of(mapping.parts("layers.0.down")[0]), "h.0.down [3, 4] at [0, 0]: [0:4, 0:3] by 1 0");
  EXPECT_EQ(text_of(mapping.parts("layers.0.experts")[1]), "h.0.experts.1 [4, 3] at [0, 0]: [1:2, 0:3, 0:4] by 2 1");
  EXPECT_EQ(text_of(mapping.parts("embed")[1]), "joined [4, 6] at [0, 1]: [2:6, 0:4] by 1 0");
  EXPECT_EQ(text_of(mapping.parts("embed")[2]), "joined [4, 6] at [0, 5]: [1:2, 0:4] by 1 0");
}

TEST(DiskLayout, MapsBoxesInBothDirections) {
  const DiskLayout mapping = map([](const Sink& m) {
    m.tensor("t", {{"embed", {4}, {2}}, {"embed", {0}, {4}}}, 0, {1, 0});
  });
  const StoredPart& part = mapping.parts("embed")[1];  // rows 0 to 4 are columns 2 to 6 of [4, 6]
  const Box rows{{1, 0}, {3, 4}};
  EXPECT_EQ(part.on_disk(rows), (Box{{0, 3}, {4, 5}}));
  EXPECT_EQ(part.in_tensor(part.on_disk(rows)), rows);
  const Piece piece = part.piece({{1, 0}, {3, 6}});
  EXPECT_EQ(piece.box, (Box{{0, 1}, {4, 3}}));
  EXPECT_EQ(piece.local, (StridedView{2, {1, 6}}));
  EXPECT_TRUE(part.piece({{0, 0}, {4, 2}}).box.empty());
}

TEST(DiskLayout, KnowsAliasesSkippedTensorsAndLiterals) {
  const DiskLayout mapping = map([](const Sink& m) {
    m.skip("*.inv_freq");
    m.alias("model.*", "*");
    m.alias("wte", "embed");
    m.literal("mask", {2}, {1, 2});
  });
  EXPECT_EQ(mapping.name_of("layers.0.inv_freq"), "");
  EXPECT_EQ(mapping.name_of("model.layers.0.qkv"), "layers.0.qkv");
  EXPECT_EQ(mapping.name_of("model.other"), "model.other");
  EXPECT_EQ(mapping.name_of("wte"), "embed");
  EXPECT_EQ(mapping.name_of("mask"), "mask");
  EXPECT_EQ(mapping.literals().at("mask").bytes.size(), 8u);
}

TEST(DiskLayout, KnowsFurtherFormsOfAParameter) {
  const DiskLayout mapping = map([](const Sink& m) {
    for (int64_t e = 0; e < 2; ++e)
      m.tensor("h.{i}.experts." + std::to_string(e), {{"layers.{i}.experts", {e}, {1}}}, 0, {1, 2});
    m.tensor("h.{i}.experts", {{"layers.{i}.experts"}});
    m.tensor("h.{i}.turned", {{"layers.{i}.experts"}}, 0, {0, 2, 1});
  });
  ASSERT_EQ(mapping.forms("layers.1.experts").size(), 3u);
  EXPECT_EQ(mapping.forms("layers.1.qkv").size(), 1u);
  EXPECT_EQ(mapping.parts("layers.1.experts").size(), 2u);
  EXPECT_EQ(text_of(mapping.forms("layers.1.experts")[1][0]),
            "h.1.experts [2, 3, 4] at [0, 0, 0]: [0:2, 0:3, 0:4] by 0 1 2");
  const auto forms_with = [&](const std::set<std::string>& names) {
    return mapping.forms_in([&](const std::string& name) { return names.contains(name); });
  };
  EXPECT_EQ(forms_with({}), DiskForms());
  EXPECT_EQ(forms_with({"h.0.experts.1", "h.0.experts"}), DiskForms());  // the first that is there
  const DiskForms chosen = forms_with({"h.0.turned", "h.1.experts"});
  EXPECT_EQ(chosen, (DiskForms{{"layers.0.experts", 2}, {"layers.1.experts", 1}}));
  EXPECT_EQ(text_of(mapping.parts("layers.0.experts", chosen)[0]),
            "h.0.turned [2, 4, 3] at [0, 0, 0]: [0:2, 0:3, 0:4] by 0 2 1");
  EXPECT_EQ(mapping.names_of(chosen), (std::vector<std::string>{"h.0.turned", "h.1.experts"}));
  EXPECT_EQ(mapping.name_of("h.1.turned"), "h.1.turned");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}});
               m.tensor("b", {{"embed", {0}, {5}}});
             }),
             "parameter 'embed' [6, 4] has 24 elements, of which only 20 are on disk, in 'b'");
}

TEST(DiskLayout, IsExactOrRefused) {
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed", {0}, {5}}});
             }),
             "parameter 'embed' [6, 4] has 24 elements, of which only 20 are on disk, in 'a'");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed", {0}, {4}}});
               m.tensor("b", {{"embed", {3}, {3}}});
             }),
             "elements [3:4, 0:4] of parameter 'embed' [6, 4] are on disk in 'a' and again in 'b'");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}});
               m.tensor("a", {{"layers.0.qkv"}});
             }),
             "two tensors are called 'a' on disk");
  EXPECT_HAS(refusal([](const Sink& m) { m.tensor("layers.0.qkv", {{"embed"}}); }),
             "two tensors are called 'layers.0.qkv' on disk; a parameter without a rule keeps its own name");
  EXPECT_HAS(refusal([](const Sink& m) { m.tensor("a", {{"layers.2.qkv"}}); }),
             "'a' on disk is made of 'layers.2.qkv', which is not a parameter of the model");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a.{i}", {{"layers.{i}.qkv"}, {"other.{i}"}});
             }),
             "'a.0' on disk is made of 'other.0', which is not a parameter of the model");
  EXPECT_HAS(refusal([](const Sink& m) { m.tensor("a", {{"layers.{i}.qkv"}}); }),
             "'a' on disk and its part 'layers.{i}.qkv' must both have {i}, or neither");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed", {4}, {3}}});
             }),
             "'a' on disk: the slice of size 3 from index 4 of dim 0 is not within 'embed' [6, 4]");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}, {"layers.0.down"}});
             }),
             "'a' on disk: 'layers.0.down' [4, 3] and 'embed' [6, 4] differ in dim 1; tensors joined along dim 0 may "
             "differ only there");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}, {"layers.0.experts"}});
             }),
             "'a' on disk: 'layers.0.experts' [2, 3, 4] cannot be joined along dim 0 with 'embed' [6, 4]");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}}, 0, {1, 1});
             }),
             "'a' on disk: dim 1 of [6, 4] is listed twice in dims");
  EXPECT_HAS(refusal([](const Sink& m) {
               m.tensor("a", {{"embed"}}, 0, {2, 0});
             }),
             "'a' on disk: dim 2 of [6, 4] does not exist");
  EXPECT_HAS(refusal([](const Sink& m) { m.tensor("a", {{"embed"}}, 0, {1}); }),
             "'a' on disk: dim 0 of [6, 4] is left out of dims, but only dims of size 1 can be");
  EXPECT_HAS(refusal([](const Sink& m) { m.tensor("a", {}); }), "'a' on disk has no part");
  EXPECT_HAS(refusal([](const Sink& m) { m.skip("emb*"); }),
             "the pattern 'emb*' skips 'embed', which is a tensor of the model");
  EXPECT_HAS(refusal([](const Sink& m) { m.literal("embed", {1}, {1}); }), "two tensors are called 'embed' on disk");
  EXPECT_HAS(refusal([](const Sink& m) { m.skip("*.*"); }), "'*.*' has more than one *");
  const int64_t one = 1;
  const auto literal = [](const int64_t* sizes) {
    return refusal([&](const Sink& m) {
      const chassis_literal_t raw = {sizeof raw, CHASSIS_DTYPE_F32, str_of("mask"), sizes, 1, nullptr};
      throw_if_failed(m.raw->literal(m.raw, &raw), "literal");
    });
  };
  EXPECT_HAS(literal(&one), "the literal tensor 'mask' has elements but no bytes");
  EXPECT_HAS(literal(nullptr), "the literal tensor 'mask' has dims but no sizes");
}

}  // namespace
}  // namespace chassis
