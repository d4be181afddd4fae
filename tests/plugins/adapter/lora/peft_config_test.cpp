// adapter_config.json of PEFT: what it adds, which keys are refused by name, and what is written.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "host/base/log_capture.hpp"
#include "host/compile/adapter_pass.hpp"
#include "host/compile/adapter_plugin.hpp"
#include "host/compile/objective_pass.hpp"
#include "tests/plugins/adapter/lora/adapted.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {
namespace {

class PeftConfig : public testing::Test {
 protected:
  // The result of a run with adapter.path, whose adapter_config.json has `keys` in addition to these.
  std::string with_path(const nlohmann::json& keys, const std::string& options = "",
                        const std::vector<std::string>& overrides = {}) {
    nlohmann::json config = {
        {"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj", "v_proj"}}};
    if (!keys.is_null()) config.update(keys);
    return with_text(config.dump(), options, overrides);
  }
  std::string with_text(const std::string& text, const std::string& options = "",
                        const std::vector<std::string>& overrides = {}) {
    write_text(folder_ / "adapter_config.json", text);
    return adapted("path = \"" + folder_.path() + "\"\n" + options, overrides);
  }
  std::string refusal(const nlohmann::json& keys, const std::string& options = "") { return with_path(keys, options); }

  ScratchDirectory folder_;
};

TEST_F(PeftConfig, IsReadWithItsDefaults) {
  EXPECT_EQ(num_lines(with_path({})), 3u * 2 * 2);
  EXPECT_EQ(num_lines(with_path({{"target_modules", "all-linear"}})), 3u * 7 * 2);
  EXPECT_EQ(num_lines(with_path({{"target_modules", ".*mlp\\.(up|gate)_proj"}})), 3u * 2 * 2);
  EXPECT_EQ(num_lines(with_path({{"exclude_modules", {"v_proj"}}})), 3u * 2);
  EXPECT_EQ(num_lines(with_path({{"layers_to_transform", {0, 2}}})), 2u * 2 * 2);
  EXPECT_EQ(num_lines(with_path({{"layers_to_transform", 1}})), 2u * 2);
  EXPECT_EQ(num_lines(with_path({{"bias", "lora_only"}})), 3u * 3 * 2);
  EXPECT_EQ(num_lines(with_path({{"modules_to_save", {"lm_head"}}})), 3u * 2 * 2 + 1);
  EXPECT_EQ(num_lines(with_path({{"use_dora", false},
                                 {"eva_config", nullptr},
                                 {"layer_replication", nullptr},
                                 {"peft_version", "0.18.0"},
                                 {"auto_mapping", {{"unsloth_fixed", true}}},
                                 {"task_type", "CAUSAL_LM"},
                                 {"revision", nullptr}})),
            3u * 2 * 2)
      << "what is off or says nothing about the result";
}

TEST_F(PeftConfig, NamesWhatIsNotDoneHere) {
  const std::string file = (folder_ / "adapter_config.json") + ": plugin 'lora' 0.1.0: ";
  const std::pair<nlohmann::json, const char*> cases[] = {
      {{{"peft_type", "IA3"}}, "peft_type is \"IA3\", this plugin reads \"LORA\""},
      {{{"use_dora", true}}, "use_dora = true: DoRA is not supported here"},
      {{{"use_qalora", true}}, "use_qalora = true: QALoRA is not supported here"},
      {{{"task_type", "TOKEN_CLS"}},
       "task_type = \"TOKEN_CLS\" is not supported here; models are causal language models or score sequences "
       "(SEQ_CLS)"},
      {{{"lora_bias", true}}, "lora_bias = true: a bias of B is not supported here"},
      {{{"layer_replication", {{0, 4}}}}, "layer_replication = [[0,4]]: replicating layers is not supported here"},
      {{{"trainable_token_indices", {1}}},
       "trainable_token_indices = [1]: training single tokens is not supported here"},
      {{{"alora_invocation_tokens", {1}}}, "activated LoRA is not supported here"},
      {{{"arrow_config", {{"a", 1}}}}, "Arrow is not supported here"},
      {{{"corda_config", {{"a", 1}}}}, "CorDA is not supported here"},
      {{{"eva_config", {{"rho", 2}}}}, "eva_config = {\"rho\":2}: EVA is not supported here"},
      {{{"loftq_config", {{"loftq_bits", 4}}}}, "LoftQ is not supported here"},
      {{{"megatron_config", {{"a", 1}}}}, "Megatron is not supported here"},
      {{{"auto_mapping", {{"unsloth_fixed", true}}}, {"target_parameters", {"mlp.experts.gate_up_proj"}}},
       "auto_mapping.unsloth_fixed = true with target_parameters: unsloth stores lora_B of experts in another order"},
      {{{"init_lora_weights", "pissa"}},
       "init_lora_weights = \"pissa\" is not supported here; its weights change the base"},
      {{{"init_lora_weights", "olora"}}, "init_lora_weights = \"olora\" is not supported here"},
      {{{"bias", "all"}}, "bias = \"all\" is not supported here; \"none\" and \"lora_only\" are"},
      {{{"a_key_of_2027", 3}}, "a_key_of_2027 = 3 is not known here"},
      {{{"r", 0}}, "r is 0, expected 1 to 1048576"},
      {{{"r", "8"}}, "r is \"8\", expected a whole number"},
      {{{"lora_alpha", -1}}, "lora_alpha is -1, expected "},
      {{{"lora_alpha", "x"}}, "lora_alpha is \"x\", expected a number"},
      {{{"lora_dropout", 1}}, "lora_dropout is 1, expected 0 to 0.999"},
      {{{"use_rslora", 1}}, "use_rslora is 1, expected true or false"},
      {{{"target_modules", nullptr}}, "target_modules is missing"},
      {{{"target_modules", 3}}, "target_modules is 3, expected names of modules"},
      {{{"target_modules", {1}}}, "target_modules has 1, expected names of modules"},
      {{{"target_modules", "(q"}}, "'((q)' is not a regular expression"},
      {{{"rank_pattern", {{"q_proj", 0}}}}, "rank_pattern.q_proj is 0, expected a number above 0"},
      {{{"alpha_pattern", {1}}}, "alpha_pattern is [1], expected an object"},
      {{{"layers_to_transform", {-1}}}, "layers_to_transform has -1, expected 0 or more"},
      {{{"layers_to_transform", {"0"}}}, "layers_to_transform has \"0\", expected indexes"},
      {{{"layers_pattern", "h"}}, "layers_pattern = \"h\" needs layers_to_transform"}};
  for (const auto& [keys, words] : cases) {
    const std::string text = refusal(keys);
    EXPECT_HAS(text, file);
    EXPECT_HAS(text, words);
  }
  for (const char* text : {"", "{", "[]", "3", "null"})
    EXPECT_HAS(with_text(text), text[0] == '\0' ? " is empty" : text[0] == '{' ? "not valid JSON" : "is not ");
  const std::string deep(100'000, '[');
  EXPECT_HAS(with_text("{\"x\": " + deep + std::string(deep.size(), ']') + "}"), "nested deeper than ");
}

TEST_F(PeftConfig, OfAnotherBaseIsRefused) {
  EXPECT_HAS(refusal({{"target_parameters", {"w"}}}),
             "adapter_config.json of adapter.path: target_parameters: 'w' matches nothing: the model has no experts");
  EXPECT_HAS(refusal({{"target_modules", {"c_attn", "q_proj"}}}),
             "adapter_config.json of adapter.path: target_modules: 'c_attn' matches no linear of the model; it has ");
  EXPECT_HAS(refusal({{"modules_to_save", {"score"}}}),
             "adapter_config.json of adapter.path: modules_to_save: 'score' matches no module of the model");
  EXPECT_HAS(
      refusal({{"task_type", "SEQ_CLS"}, {"modules_to_save", {"classifier", "score"}}}),
      "adapter_config.json of adapter.path: task_type: \"SEQ_CLS\": the adapter was trained with a head of scores, "
      "and this run has none");
  EXPECT_HAS(refusal({{"r", 32}}),
             "adapter_config.json of adapter.path: r: rank 32 of module "
             "'model.layers.0.self_attn.v_proj' is above 16");
  EXPECT_HAS(refusal({{"layers_to_transform", {5}}}),
             "adapter_config.json of adapter.path: layers_to_transform: there is no layer 5: the model has 3 layers");
}

TEST_F(PeftConfig, MayNotContradictAnOption) {
  EXPECT_HAS(refusal({}, "rank = 8\n"), ": adapter.rank: 8, but the adapter in adapter.path has 4; leave the key out");
  EXPECT_HAS(refusal({}, "alpha = 4.0\n"), ": adapter.alpha: 4, but the adapter in adapter.path has 8");
  EXPECT_HAS(refusal({}, "use_rslora = true\n"), ": adapter.use_rslora: ");
  EXPECT_HAS(refusal({}, "bias = \"lora_only\"\n"),
             ": adapter.bias: lora_only, but the adapter in adapter.path has none");
  EXPECT_HAS(refusal({}, "targets = [\"q_proj\"]\n"), ": adapter.targets: cannot be set with adapter.path");
  EXPECT_HAS(refusal({}, "rank_pattern = { q_proj = 2 }\n"), ": adapter.rank_pattern: cannot be set with adapter.path");
  EXPECT_HAS(refusal({}, "init = \"gaussian\"\n"), ": adapter.init: has no effect with adapter.path");
  EXPECT_EQ(num_lines(with_path({}, "rank = 4\nalpha = 8.0\ndropout = 0.1\n")), 3u * 2 * 2) << "they agree";
}

// PEFT takes every module whose name ends with the text, and everything inside it.
TEST_F(PeftConfig, MeansModulesToSaveByTheEndOfTheirNames) {
  const std::string norms = with_path({{"modules_to_save", {"norm"}}});
  EXPECT_EQ(num_lines(norms), 3u * 2 * 2 + 3 * 2 + 1) << norms;
  EXPECT_HAS(norms, "model.layers.1.input_layernorm.weight\n");
  EXPECT_EQ(num_lines(with_path({{"modules_to_save", {"model.norm"}}})), 3u * 2 * 2 + 1);
  EXPECT_EQ(num_lines(with_path({{"modules_to_save", {"mlp"}}})), 3u * 2 * 2 + 3 * 3);
  EXPECT_HAS(refusal({{"modules_to_save", {".*norm"}}}), "modules_to_save: '.*norm' matches no module of the model");
}

// PEFT gives the saved one a weight of its own, unless ensure_weight_tying is true.
TEST_F(PeftConfig, SavesOneOfTwoTiedModulesOnlyIfTheyStayTied) {
  const auto of = [&](nlohmann::json keys) { return with_path(keys, "", {"model.config.tie_word_embeddings=true"}); };
  for (const char* module : {"embed_tokens", "lm_head"}) {
    EXPECT_HAS(of({{"modules_to_save", {module}}}), "share a weight, and ensure_weight_tying is not true");
    EXPECT_EQ(num_lines(of({{"modules_to_save", {module}}, {"ensure_weight_tying", true}})), 3u * 2 * 2 + 1);
  }
  EXPECT_EQ(num_lines(of({{"modules_to_save", {"embed_tokens", "lm_head"}}})), 3u * 2 * 2 + 1);
}

TEST_F(PeftConfig, NamesSavedModulesAsPeftMatchesThem) {
  const auto written = [&](const std::string& saved) {
    PlannedRank rank(with_lora("targets = [\"q_proj\"]\nmodules_to_save = " + saved + "\n"), 1, 0,
                     {"export.plugin=safetensors"});
    return nlohmann::json::parse(rank.session().adapter()->plugin().config("models/base", "{}"))["modules_to_save"];
  };
  const log::CapturedWarnings warnings;
  EXPECT_EQ(written("[\"norm\", \"embed_tokens\"]"), (nlohmann::json{"embed_tokens", "model.norm"}));
  ASSERT_EQ(warnings.warnings().size(), 1u);
  EXPECT_HAS(warnings.warnings()[0].text,
             "PEFT would take also those whose names end in it: input_layernorm, "
             "post_attention_layernorm; add them");
  EXPECT_EQ(written("[\".*norm\"]"), (nlohmann::json{"input_layernorm", "norm", "post_attention_layernorm"}));
}

// The resolved configuration of a run has every option.
TEST_F(PeftConfig, DefaultsThatAreWrittenDownContradictNothing) {
  EXPECT_EQ(num_lines(with_path({},
                                "rank = 16\nalpha = 0.0\ntargets = [\"all-linear\"]\nexclude = []\nlayers = \"\"\n"
                                "modules_to_save = []\ninit = \"kaiming\"\nbias = \"none\"\n"
                                "[adapter.rank_pattern]\n[adapter.alpha_pattern]\n")),
            3u * 2 * 2);
}

TEST_F(PeftConfig, IsMissing) {
  EXPECT_HAS(adapted("path = \"/nowhere\"\n"), "adapter.path");
  EXPECT_HAS(adapted("path = \"" + folder_.path() + "\"\n"),
             "adapter.path: there is no " + (folder_ / "adapter_config.json"));
}

TEST_F(PeftConfig, IsWrittenForPeft) {
  PlannedRank rank(with_lora("rank = 4\nalpha = 6.0\ndropout = 0.1\ntargets = [\"q_proj\", \"down_proj\"]\n"
                             "rank_pattern = { down_proj = 8 }\nmodules_to_save = [\"lm_head\"]\nuse_rslora = true\n"),
                   1, 0, {"export.plugin=safetensors"});
  const auto config = nlohmann::json::parse(rank.session().adapter()->plugin().config("models/base", "{}"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 6);
  EXPECT_EQ(config["lora_dropout"], 0.1);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["bias"], "none");
  EXPECT_EQ(config["fan_in_fan_out"], false);
  EXPECT_EQ(config["base_model_name_or_path"], "models/base");
  EXPECT_EQ(config["target_modules"], (nlohmann::json{"down_proj", "q_proj"}));
  EXPECT_EQ(config["modules_to_save"], nlohmann::json{"lm_head"});
  EXPECT_EQ(config["rank_pattern"].size(), 3u) << config["rank_pattern"];
  EXPECT_EQ(config["rank_pattern"]["model.layers.1.mlp.down_proj"], 8);
}

// A program whose objective has put a head of scores in place of the model's own, with LoRA.
class PeftConfigOfScores : public testing::Test {
 protected:
  // The parameters that are trained, apart from branches; sets `config_`, which is for PEFT.
  std::string trained(const std::string& adapter_config) {
    Program program = SmallModel{.vocab = 40, .hidden = 32, .ffn = 48, .layers = 1}.program();
    BlockType& head = *program.last_block();
    head.outputs[kHiddenOutput] = head.inputs.at("hidden");
    head.outputs.erase(kLossOutput);
    const AdapterPlugin plugin(plugins_.create("adapter", "lora"));
    plugin.configure(adapter_config);
    const AdapterPass pass(plugin, [](const Program&) { return FileNames{}; });
    const CompiledProgram compiled =
        compile(std::move(program),
                {.objective = ObjectiveRequest{ObjectiveOutput::kScores, 1}, .passes = {.adapters = {&pass}}});
    config_ = nlohmann::json::parse(plugin.config("models/base", "{}"));
    std::string names;
    for (const BlockType& block : compiled.program().blocks)
      for (const ParameterSlot& slot : block.slots)
        if (!slot.frozen && !slot.added) names += slot.name + "\n";
    return names;
  }

  LoadedPlugins plugins_;
  nlohmann::json config_;
};

TEST_F(PeftConfigOfScores, SavesTheHead) {
  EXPECT_EQ(trained(""), "score.weight\n");
  EXPECT_EQ(config_["task_type"], "SEQ_CLS");
  EXPECT_EQ(config_["modules_to_save"], nlohmann::json{"score"});
  EXPECT_EQ(config_["target_modules"], (nlohmann::json{"down", "up"})) << "all-linear leaves out the head";
}

// PEFT writes both names of heads for SEQ_CLS. An adapter of a language model is continued with a new head.
TEST_F(PeftConfigOfScores, IsReadAsPeftWritesIt) {
  nlohmann::json peft = {{"peft_type", "LORA"}, {"r", 4}, {"target_modules", {"up"}}, {"task_type", "SEQ_CLS"}};
  peft["modules_to_save"] = {"classifier", "score", "norm"};
  EXPECT_EQ(trained(peft.dump()), "norm.weight\nscore.weight\n");
  EXPECT_EQ(config_["modules_to_save"], (nlohmann::json{"norm", "score"}));
  peft["task_type"] = "CAUSAL_LM";
  peft.erase("modules_to_save");
  EXPECT_EQ(trained(peft.dump()), "score.weight\n");
  EXPECT_EQ(config_["task_type"], "SEQ_CLS");
}

}  // namespace
}  // namespace chassis::test
