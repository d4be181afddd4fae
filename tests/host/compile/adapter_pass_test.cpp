// The adapter pass: what it offers, what it makes of the answers, and what it refuses.
#include "host/compile/adapter_pass.hpp"

#include <gtest/gtest.h>

#include "tests/host/compile/scripted_adapter.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

using test::AdapterScript;
using test::Recorder;
using test::SmallModel;

std::string text_of(chassis_str_t text) { return {text.ptr, text.len}; }

// One call of extend().
struct Extension {
  const chassis_adapter_op_t& op;
  const chassis_adapter_builder_t& b;
  Recorder record;

  bool is(const char* name) const { return text_of(op.name) == name; }
  std::vector<DimId> axis(size_t i) const {
    return {op.weight_axes[i].dims, op.weight_axes[i].dims + op.weight_axes[i].num_dims};
  }
  std::vector<DimId> output_dims() const { return {op.output_dims, op.output_dims + op.num_output_dims}; }
  void replace_input(ValueId value) { throw_if_failed(b.replace_input(&b, value), "replace_input"); }
  void replace_output(ValueId value) { throw_if_failed(b.replace_output(&b, value), "replace_output"); }
  // output + B A input
  void add_branch(int64_t rank = 2) {
    const DimId r = record.dim("rank_" + std::to_string(rank), rank);
    const SlotId down = record.slot("lora_A.weight", {{r}, axis(1)});
    const SlotId up = record.slot("lora_B.weight", {axis(0), {r}}, {CHASSIS_ROLE_WEIGHT, CHASSIS_INIT_ZEROS, 0});
    const ValueId z = record.op("linear", "lora_A", {op.input}, {down}, {}, {r});
    const ValueId y = record.op("linear", "lora_B", {z}, {up}, {}, axis(0));
    replace_output(record.op("add", "add", {op.output, y}));
  }
  ValueId scaled(ValueId value, std::vector<DimId> channels) {
    return record.op("channel_scale", "scale", {value}, {record.slot("gain", {std::move(channels)})});
  }
};

class AdapterPassTest : public testing::Test {
 protected:
  Program adapt(Program program, const std::function<void(Extension&)>& extend, FileNames files = {}) {
    script_.extend = [&extend](const chassis_adapter_op_t& op, const chassis_adapter_builder_t& b) {
      return guarded([&] {
        Extension extension{op, b, Recorder(b.record)};
        extend(extension);
      });
    };
    const auto instance = plugins_.make("adapter", "scripted", Json{{"script", reinterpret_cast<int64_t>(&script_)}});
    const AdapterPlugin plugin(*instance);
    plugin.configure("");
    reports_.clear();
    AdapterPass(plugin, [&](const Program&) {
      return files;
    }).rewrite(program, [&](const std::string& subject, const std::string& what) {
      reports_ += subject + ": " + what + "\n";
    });
    return program;
  }
  // The refusal when op "up" of the layers is extended.
  std::string refusal(const std::function<void(Extension&)>& extend) {
    return test::refusal([&] {
      adapt(SmallModel{}.program(), [&](Extension& e) {
        if (e.is("up")) extend(e);
      });
    });
  }
  static std::string ops_of(const BlockType& block) {
    std::string names;
    for (const Op& op : block.ops) names += (names.empty() ? "" : " ") + op.name;
    return names;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_STUB_DIR}};
  AdapterScript script_;
  std::string reports_;
};

TEST_F(AdapterPassTest, OffersEveryOpThatHasParametersInEveryUnit) {
  const Program recorded = SmallModel{}.program();
  std::string offered;
  const auto dims = [&](const chassis_dim_t* ids, size_t count) {
    return recorded.dims_text(std::vector<DimId>(ids, ids + count));
  };
  const Program program = adapt(recorded, [&](Extension& e) {
    const auto& op = e.op;
    offered += text_of(op.chain) + "/" + text_of(op.block) + " " + std::to_string(op.layer) + " " + text_of(op.op) +
               " " + text_of(op.name) + " of " + text_of(op.module) + " role " + std::to_string(op.role) +
               (op.has_bias ? " bias" : "") + " " + dims(op.input_dims, op.num_input_dims) + " -> " +
               dims(op.output_dims, op.num_output_dims);
    for (uint32_t i = 0; i < op.num_weight_axes; ++i) offered += " " + std::to_string(op.weight_axes[i].size);
    offered += "\n";
    EXPECT_EQ(op.num_joined, 1u);
  });
  EXPECT_EQ(offered,
            "embed/embed -1 embedding embedding of embed role 4 [B, T] -> [B, T, hidden=4] 11 4\n"
            "layers/layer 0 rms_norm norm of layers.0.norm role 3 [B, T, hidden=4] -> [B, T, hidden=4] 4\n"
            "layers/layer 0 linear up of layers.0.up role 1 bias [B, T, hidden=4] -> [B, T, ffn=6] 6 4\n"
            "layers/layer 0 linear down of layers.0.down role 1 [B, T, ffn=6] -> [B, T, hidden=4] 4 6\n"
            "layers/layer 1 rms_norm norm of layers.1.norm role 3 [B, T, hidden=4] -> [B, T, hidden=4] 4\n"
            "layers/layer 1 linear up of layers.1.up role 1 bias [B, T, hidden=4] -> [B, T, ffn=6] 6 4\n"
            "layers/layer 1 linear down of layers.1.down role 1 [B, T, ffn=6] -> [B, T, hidden=4] 4 6\n"
            "head/head -1 linear lm_head of lm_head role 5 [B, T, hidden=4] -> [B, T, vocab=11] 11 4\n");
  EXPECT_EQ(program.blocks.size(), recorded.blocks.size());
  for (size_t i = 0; i < program.blocks.size(); ++i) {
    EXPECT_EQ(program.blocks[i].ops, recorded.blocks[i].ops) << "nothing was recorded";
    for (const ParameterSlot& slot : program.blocks[i].slots) EXPECT_TRUE(slot.frozen) << slot.name;
  }
}

TEST_F(AdapterPassTest, OffersEveryParameterOnceWithItsReaderAndWhatIsTiedToIt) {
  std::string offered;
  script_.parameter = [&](const chassis_adapter_parameter_t& p, uint32_t* trained) -> chassis_status_t* {
    offered += text_of(p.name) + " " + text_of(p.op) + " of " + text_of(p.module) + " " + std::to_string(p.layer);
    for (uint64_t i = 0; i < p.num_dims; ++i) offered += " " + std::to_string(p.sizes[i]);
    for (uint64_t i = 0; i < p.num_tied; ++i) offered += " tied " + text_of(p.tied[i]);
    offered += "\n";
    *trained = text_of(p.name) == "embed.weight" || text_of(p.op) == "rms_norm";
    return nullptr;
  };
  const Program program = adapt(SmallModel{.layers = 1, .tied = true}.program(), [](Extension&) {});
  EXPECT_EQ(offered,
            "embed.weight embedding of embed -1 11 4 tied lm_head.weight\n"
            "layers.0.norm.weight rms_norm of layers.0.norm 0 4\n"
            "layers.0.up.weight linear of layers.0.up 0 6 4\n"
            "layers.0.up.bias linear of layers.0.up 0 6\n"
            "layers.0.down.weight linear of layers.0.down 0 4 6\n");
  EXPECT_FALSE(program.blocks[0].slots[0].frozen);
  EXPECT_FALSE(program.blocks[1].slots[0].frozen);
  EXPECT_TRUE(program.blocks[1].slots[1].frozen);
  EXPECT_FALSE(program.blocks[2].slots[0].frozen) << "tied to a trained parameter";
  EXPECT_EQ(reports_, "embed: trains embed.weight\nlayer: trains norm.weight\nhead: trains lm_head.weight\n");
}

TEST_F(AdapterPassTest, ABranchTakesTheOutputsPlace) {
  const Program program = adapt(SmallModel{}.program(), [](Extension& e) {
    if (e.is("up")) e.add_branch();
  });
  ASSERT_EQ(program.blocks.size(), 3u) << "both layers are extended alike";
  const BlockType& layer = program.blocks[1];
  EXPECT_EQ(ops_of(layer), "norm up up.lora_A up.lora_B up.add gelu down residual");
  EXPECT_EQ(layer.ops[2].inputs[0], layer.ops[0].outputs[0]);
  EXPECT_EQ(layer.ops[4].inputs[0], layer.ops[1].outputs[0]);
  EXPECT_EQ(layer.ops[5].inputs[0], layer.ops[4].outputs[0]) << "gelu reads the sum";
  ASSERT_EQ(layer.slots.size(), 6u);
  EXPECT_EQ(layer.slots[4].name, "up.lora_A.weight");
  EXPECT_TRUE(layer.slots[4].added);
  EXPECT_FALSE(layer.slots[4].frozen);
  EXPECT_EQ(program.chains[1].parameter_name(1, layer.slots[5]), "layers.1.up.lora_B.weight");
  EXPECT_HAS(reports_, "layer.up: adds lora_A.weight [rank_2=2, hidden=4], lora_B.weight [ffn=6, rank_2=2]\n");
  EXPECT_HAS(reports_, "head: left as it is, frozen\n");
}

TEST_F(AdapterPassTest, AnOutputOfTheBlockIsReplacedToo) {
  const Program program = adapt(SmallModel{}.program(), [](Extension& e) {
    if (e.is("lm_head") || e.is("embedding")) e.replace_output(e.scaled(e.op.output, {e.output_dims().back()}));
  });
  EXPECT_EQ(program.blocks[0].outputs.at("hidden"), program.blocks[0].ops.back().outputs[0]);
  const BlockType& head = program.blocks[2];
  EXPECT_EQ(ops_of(head), "lm_head lm_head.scale loss");
  EXPECT_EQ(head.outputs.at("logits"), head.ops[1].outputs[0]);
  EXPECT_EQ(head.ops[2].inputs[0], head.ops[1].outputs[0]);
}

TEST_F(AdapterPassTest, AnInputIsReplacedForThisOpAlone) {
  const Program program = adapt(SmallModel{}.program(), [](Extension& e) {
    if (e.is("down")) e.replace_input(e.scaled(e.op.input, e.axis(1)));
  });
  const BlockType& layer = program.blocks[1];
  EXPECT_EQ(ops_of(layer), "norm up gelu down.scale down residual");
  EXPECT_EQ(layer.ops[4].inputs[0], layer.ops[3].outputs[0]);
  EXPECT_EQ(layer.ops[3].inputs[0], layer.ops[2].outputs[0]);
}

TEST_F(AdapterPassTest, InputAndOutputAreReplacedTogether) {
  const Program program = adapt(SmallModel{}.program(), [](Extension& e) {
    if (!e.is("up")) return;
    e.replace_input(e.scaled(e.op.input, e.axis(1)));
    e.replace_output(e.record.op("scale", "half", {e.op.output}, {}, {{"factor", 0.5}}));
  });
  EXPECT_EQ(ops_of(program.blocks[1]), "norm up.scale up up.half gelu down residual");
}

TEST_F(AdapterPassTest, LayersThatAreAnsweredAlikeStayOneType) {
  const Program program = adapt(SmallModel{.layers = 5}.program(), [](Extension& e) {
    if (e.is("up") && e.op.layer % 2 == 0) e.add_branch();
    if (e.is("up") && e.op.layer == 3) e.add_branch(1);
  });
  ASSERT_EQ(program.blocks.size(), 5u);
  EXPECT_EQ(program.chains[1].blocks, (std::vector<uint32_t>{1, 2, 1, 3, 1}));
  EXPECT_EQ(program.blocks[1].name, "layer");
  EXPECT_EQ(program.blocks[2].name, "layer-2");
  EXPECT_EQ(program.blocks[3].name, "layer-3");
  EXPECT_EQ(program.blocks[4].name, "head");
  EXPECT_HAS(reports_, "layer-2: left as it is, frozen\n");
  EXPECT_HAS(reports_, "layer-3.up: adds lora_A.weight [rank_1=1, hidden=4]");
}

TEST_F(AdapterPassTest, WhatIsTrainedSplitsTypesToo) {
  script_.parameter = [](const chassis_adapter_parameter_t& p, uint32_t* trained) -> chassis_status_t* {
    *trained = p.layer == 1;
    return nullptr;
  };
  const Program program = adapt(SmallModel{.layers = 3}.program(), [](Extension&) {});
  EXPECT_EQ(program.chains[1].blocks, (std::vector<uint32_t>{1, 2, 1}));
  EXPECT_FALSE(program.blocks[2].slots[0].frozen);
}

TEST_F(AdapterPassTest, ModulesAndParametersHaveTheNamesOfFiles) {
  FileNames files;
  for (const std::string layer : {"0", "1"}) {
    files.of["layers." + layer + ".up.weight"] = "h." + layer + ".c_in.weight";
    files.of["layers." + layer + ".down.weight"] = "h." + layer + ".c_in.weight";
    files.of["layers." + layer + ".up.bias"] = "h." + layer + ".c_in.bias";
    files.in_file["h." + layer + ".c_in.weight"] = {"layers." + layer + ".up.weight",
                                                    "layers." + layer + ".down.weight"};
    files.in_file["h." + layer + ".c_in.bias"] = {"layers." + layer + ".up.bias"};
  }
  std::string ops, parameters;
  script_.parameter = [&](const chassis_adapter_parameter_t& p, uint32_t*) -> chassis_status_t* {
    if (p.layer == 1) parameters += text_of(p.name) + " of " + text_of(p.module) + "\n";
    return nullptr;
  };
  const Program program = adapt(
      SmallModel{}.program(),
      [&](Extension& e) {
        if (e.op.layer == 1) ops += text_of(e.op.module) + " " + std::to_string(e.op.num_joined) + "\n";
        if (e.is("up")) e.add_branch();
      },
      files);
  EXPECT_EQ(ops, "layers.1.norm 1\nh.1.c_in 2\nh.1.c_in 2\n");
  EXPECT_EQ(parameters,
            "layers.1.norm.weight of layers.1.norm\nh.1.c_in.weight of h.1.c_in\nh.1.c_in.bias of h.1.c_in\n"
            "h.1.c_in.weight of h.1.c_in\n");
  EXPECT_EQ(program.blocks[1].slots[4].name, "up.lora_A.weight") << "the program keeps its own names";
}

TEST_F(AdapterPassTest, ATiedHeadIsOfferedUnderItsOwnName) {
  std::string modules;
  const Program program = adapt(SmallModel{.tied = true}.program(), [&](Extension& e) {
    if (e.op.layer < 0) modules += text_of(e.op.module) + " role " + std::to_string(e.op.role) + "\n";
    if (e.is("lm_head")) e.add_branch();
  });
  EXPECT_EQ(modules, "embed role 4\nlm_head role 5\n");
  EXPECT_EQ(program.blocks[2].slots[1].name, "lm_head.lora_A.weight");
  EXPECT_EQ(program.blocks[2].slots[0].tied_to, "embed.weight");
}

TEST_F(AdapterPassTest, FunctionsOfModelsAreRefused) {
  const auto function = [&](const std::string& name, const std::function<void(Extension&)>& call) {
    EXPECT_HAS(refusal(call), "an adapter records into the block of an op: " + name + " is for models");
  };
  function("begin_block", [](Extension& e) { e.record.begin_block("b"); });
  function("end_block", [](Extension& e) { e.record.end_block(); });
  function("input", [](Extension& e) { e.record.input("hidden", {0, 1, 2}); });
  function("field", [](Extension& e) { e.record.field("positions"); });
  function("output", [](Extension& e) { e.record.output("extra", e.op.output); });
  function("chain", [](Extension& e) { e.record.chain("c", "", {0}); });
}

TEST_F(AdapterPassTest, OpsReadOnlyWhatBelongsToTheExtendedOp) {
  EXPECT_HAS(refusal([](Extension& e) {
               e.record.op("add", "sum", {0, e.op.input});
             }),
             "module 'up': op 'sum' reads value 0, which is neither input nor output of the extended op, nor recorded "
             "by the adapter");
  EXPECT_HAS(refusal([](Extension& e) { e.record.op("linear", "again", {e.op.input}, {1}, {}, {e.axis(0)}); }),
             "module 'up': op 'again' reads parameter 'up.weight', which was not recorded for this op");
  EXPECT_HAS(refusal([](Extension& e) {
               e.record.op("add", "sum", {e.op.input, e.op.output});
             }),
             "op add 'sum': input 1 is [B, T, ffn=6], expected [B, T, hidden=4]");
  EXPECT_HAS(refusal([](Extension& e) { e.record.op("swap", "s", {e.op.input}); }), "swap");
  EXPECT_HAS(refusal([](Extension& e) { e.record.op("add", "sum", {e.op.input, 4000}); }), "4000");
}

TEST_F(AdapterPassTest, OpsOfABlockMayShareAValueAndSoAParameter) {
  ValueId z = 0;
  const Program program = adapt(SmallModel{}.program(), [&](Extension& e) {
    if (e.is("up")) {
      const DimId r = e.record.dim("rank", 2);
      z = e.record.op("linear", "lora_A", {e.op.input}, {e.record.slot("lora_A.weight", {{r}, e.axis(1)})}, {}, {r});
      const SlotId up = e.record.slot("lora_B.weight", {e.axis(0), {r}});
      e.replace_output(
          e.record.op("add", "add", {e.op.output, e.record.op("linear", "lora_B", {z}, {up}, {}, e.axis(0))}));
    } else if (e.is("down")) {
      const DimId r = e.record.dim("rank", 2);
      const ValueId scaled = e.record.op("scale", "scale", {z}, {}, {{"factor", 2.0}});
      const SlotId down = e.record.slot("lora_B.weight", {e.axis(0), {r}});
      const ValueId y = e.record.op("linear", "lora_B", {scaled}, {down}, {}, e.axis(0));
      e.replace_output(e.record.op("add", "add", {e.op.output, y}));
    }
  });
  const BlockType& layer = program.blocks[1];
  EXPECT_EQ(ops_of(layer), "norm up up.lora_A up.lora_B up.add gelu down down.scale down.lora_B down.add residual");
  const auto shared_by = [&](const char* slot) {
    return std::ranges::find(layer.slots, slot, &ParameterSlot::name)->shared_by;
  };
  EXPECT_EQ(shared_by("up.lora_A.weight"), std::vector<std::string>{"down"});
  EXPECT_EQ(shared_by("up.lora_B.weight"), std::vector<std::string>()) << "gelu is an op of the model";
  EXPECT_EQ(shared_by("down.lora_B.weight"), std::vector<std::string>());
}

TEST_F(AdapterPassTest, ParametersAreNewAndNotTied) {
  EXPECT_HAS(refusal([](Extension& e) { e.record.slot("weight", {e.axis(0)}); }),
             "module 'up': already has a parameter 'up.weight'");
  EXPECT_HAS(refusal([](Extension& e) {
               e.record.slot("a", {e.axis(0)});
               e.record.slot("a", {e.axis(0)});
             }),
             "module 'up': already has a parameter 'up.a'");
  EXPECT_HAS(refusal([](Extension& e) {
               e.record.slot("a", {e.axis(0)}, {CHASSIS_ROLE_WEIGHT, CHASSIS_INIT_ZEROS, 0, "embed.weight"});
             }),
             "module 'up': parameter 'a' is tied; an adapter's cannot be");
}

TEST_F(AdapterPassTest, ReplacementsAreRecordedAndHaveTheSameDims) {
  EXPECT_HAS(refusal([](Extension& e) { e.replace_output(e.op.input); }), "replace_output gets value ");
  EXPECT_HAS(refusal([](Extension& e) { e.replace_output(e.op.input); }), ", which no recorded op makes");
  EXPECT_HAS(refusal([](Extension& e) { e.replace_input(e.op.output); }), "replace_input gets value ");
  EXPECT_HAS(refusal([](Extension& e) { e.replace_output(e.scaled(e.op.input, e.axis(1))); }),
             "module 'up': replace_output gets a value of [B, T, hidden=4], expected [B, T, ffn=6]");
  EXPECT_HAS(refusal([](Extension& e) { e.replace_input(e.scaled(e.op.output, e.axis(0))); }),
             "module 'up': replace_input gets a value that needs the op's output");
  EXPECT_HAS(
      refusal([](Extension& e) {
        const DimId two = e.record.dim("two", 2);
        e.replace_input(e.record.op("linear", "l", {e.op.input}, {e.record.slot("w", {{two}, e.axis(1)})}, {}, {two}));
      }),
      "module 'up': replace_input gets a value of [B, T, two=2], expected [B, T, hidden=4]");
}

TEST_F(AdapterPassTest, AnAnswerThatIsNeitherYesNorNoIsRefused) {
  script_.parameter = [](const chassis_adapter_parameter_t&, uint32_t* trained) -> chassis_status_t* {
    *trained = 7;
    return nullptr;
  };
  EXPECT_HAS(test::refusal([&] { adapt(SmallModel{}.program(), [](Extension&) {}); }),
             "parameter() sets trained to 7, expected 0 or 1");
}

TEST_F(AdapterPassTest, AnUnusedParameterIsAPluginError) {
  EXPECT_HAS(refusal([](Extension& e) { e.record.slot("idle", {e.axis(0)}); }), "up.idle");
}

}  // namespace
}  // namespace chassis
