// The parameters that the options of LoRA add and train, and every refusal.
#include <gtest/gtest.h>

#include "tests/plugins/adapter/lora/adapted.hpp"

namespace chassis::test {
namespace {

constexpr const char* kQ0 = "model.layers.0.self_attn.q_proj.lora_A.weight\n";

TEST(LoraTargets, AreAllLinearsButTheHeadByDefault) {
  const std::string text = adapted("");
  EXPECT_EQ(num_lines(text), 3u * 7 * 2) << text;
  EXPECT_HAS(text, kQ0);
  EXPECT_HAS(text, "model.layers.2.mlp.down_proj.lora_B.weight\n");
  EXPECT_FALSE(has_text(text, "lm_head"));
  EXPECT_FALSE(has_text(text, "embed_tokens"));
}

TEST(LoraTargets, AreEndsOfNamesOrRegularExpressionsForWholeNames) {
  EXPECT_EQ(num_lines(adapted("targets = [\"q_proj\", \"self_attn.v_proj\"]\n")), 3u * 2 * 2);
  EXPECT_EQ(num_lines(adapted("targets = ['.*[01]\\.mlp\\.(up|down)_proj']\n")), 2u * 2 * 2);
  EXPECT_EQ(num_lines(adapted("targets = [\"lm_head\"]\n")), 2u) << "only all-linear leaves out the head";
  EXPECT_EQ(num_lines(adapted("exclude = [\"mlp.gate_proj\", '.*\\.2\\..*']\n")), 2u * 6 * 2);
  EXPECT_EQ(num_lines(adapted("layers = \"0:2\"\n")), 2u * 7 * 2);
  EXPECT_EQ(num_lines(adapted("layers = \"0, 2\"\ntargets = [\"o_proj\"]\n")), 2u * 2);
}

TEST(LoraTargets, MayLookAround) {
  EXPECT_EQ(num_lines(adapted("targets = ['(?!.*\\.0\\.).*(?<=self_attn\\.)[qv]_proj']\n")), 2u * 2 * 2);
  EXPECT_EQ(num_lines(adapted("targets = ['(?P<part>self_attn|mlp|.)*[qv]_proj']\n")), 3u * 2 * 2);
}

TEST(LoraTargets, ThatAreNoPatternsOrTakeForeverAreRefused) {
  EXPECT_HAS(adapted("targets = ['.*\\2_proj']\n"),
             "is not a regular expression: reference to non-existent subpattern");
  EXPECT_HAS(adapted("targets = ['" + std::string(101, '(') + std::string(101, ')') + "']\n"),
             "is not a regular expression: parentheses are too deeply nested");
  EXPECT_HAS(adapted("targets = ['((.*)*)*\\.\\.']\n"),
             "' was given up: match limit exceeded; nested repetitions, such as (a+)+, take time");
}

TEST(LoraTargets, ThatMatchNothingAreRefusedWithWhatTheModelHas) {
  const std::string linears =
      "matches no linear of the model; it has down_proj, gate_proj, k_proj, lm_head, o_proj, "
      "q_proj, up_proj, v_proj";
  EXPECT_HAS(adapted("targets = [\"q_proj\", \"query\"]\n"), "run.toml:37:11: adapter.targets: 'query' " + linears);
  EXPECT_HAS(adapted("targets = [\"proj\"]\n"), "adapter.targets: 'proj' matches no linear");
  EXPECT_HAS(adapted("exclude = [\"head\"]\n"), "run.toml:37:11: adapter.exclude: 'head' " + linears);
  EXPECT_HAS(adapted("targets = []\n"), "adapter.targets: the list is empty, so nothing would get a branch");
  EXPECT_HAS(adapted("targets = [\"\"]\n"), "adapter.targets: an empty name matches nothing");
  EXPECT_HAS(adapted("targets = [\"(q_proj\"]\n"), "adapter.targets: '(q_proj' is not a regular expression: ");
  EXPECT_HAS(adapted("targets = [\"" + std::string(1025, '.') + "\"]\n"),
             "adapter.targets: a pattern of 1025 bytes; the maximum is 1024");
  EXPECT_HAS(adapted("exclude = ['.*']\n"), "adapter.targets: no module gets a branch: exclude and layers leave none");
  EXPECT_HAS(adapted("targets = [\"embed_tokens\"]\n"),
             "adapter.targets: module 'model.embed_tokens' is embedding, and LoRA extends linears and routers only");
}

TEST(LoraLayers, ThatDoNotExistAreRefused) {
  EXPECT_HAS(adapted("layers = \"0:4\"\n"),
             "run.toml:37:10: adapter.layers: there is no layer 3: the model has 3 layers");
  EXPECT_HAS(adapted("layers = \"0-2\"\n"),
             "adapter.layers: \"0-2\": '0-2' is not an index; write ranges such as \"0:16\"");
  EXPECT_HAS(adapted("layers = \"2:2\"\n"), "adapter.layers: \"2:2\": 2:2 is empty");
}

TEST(LoraRank, MayNotBeAboveTheSmallerSize) {
  EXPECT_HAS(
      adapted("rank = 17\n"),
      "run.toml:37:8: adapter.rank: rank 17 of module 'model.layers.0.self_attn.k_proj' is above 16, the smaller "
      "size of its weight [16, 48]; set rank to it or less, give the module another in rank_pattern, or leave it out "
      "with exclude");
  EXPECT_HAS(adapted("rank = 0\n"), "adapter.rank = 0");
  EXPECT_HAS(adapted("rank_pattern = { v_proj = 20 }\n"),
             "run.toml:37:16: adapter.rank_pattern: rank 20 of module 'model.layers.0.self_attn.v_proj' is above 16");
  EXPECT_EQ(num_lines(adapted("rank = 17\nrank_pattern = { 'k_proj|v_proj' = 16 }\n")), 3u * 7 * 2);
}

TEST(LoraPatterns, AreCheckedAndMustMatchATarget) {
  EXPECT_HAS(adapted("rank_pattern = { query = 4 }\n"),
             "run.toml:37:16: adapter.rank_pattern: 'query' matches no module that gets a branch");
  EXPECT_HAS(adapted("alpha_pattern = { lm_head = 4 }\n"),
             "adapter.alpha_pattern: 'lm_head' matches no module that gets a branch");
  EXPECT_HAS(adapted("rank_pattern = { q_proj = 1.5 }\n"),
             "adapter.rank_pattern: q_proj = 1.5, expected a whole number");
  EXPECT_HAS(adapted("rank_pattern = { q_proj = 0 }\n"),
             "adapter.rank_pattern: q_proj = 0, expected a whole number above 0");
  EXPECT_HAS(adapted("alpha_pattern = { q_proj = \"x\" }\n"),
             "adapter.alpha_pattern: q_proj = \"x\", expected a number");
  EXPECT_HAS(adapted("alpha_pattern = { q_proj = -1 }\n"),
             "adapter.alpha_pattern: q_proj = -1, expected a number above 0");
  EXPECT_HAS(adapted("rank_pattern = { \"q(\" = 1 }\n"), "adapter.rank_pattern: 'q(' is not a regular expression");
}

TEST(LoraModulesToSave, AreTrainedWhole) {
  const std::string text = adapted("targets = [\"q_proj\"]\nmodules_to_save = [\"lm_head\", \"norm\"]\n");
  EXPECT_HAS(text, "lm_head.weight\n");
  EXPECT_HAS(text, "model.norm.weight\n");
  EXPECT_EQ(num_lines(text), 3u * 2 + 2) << text;
  EXPECT_HAS(adapted("modules_to_save = [\"score\"]\n"),
             "run.toml:37:19: adapter.modules_to_save: 'score' matches no module of the model; it has ");
  EXPECT_HAS(adapted("modules_to_save = [\"q_proj\"]\n"),
             "adapter.modules_to_save: module 'model.layers.0.self_attn.q_proj' is in targets too");
}

TEST(LoraBias, OfTargetsIsTrainedWithLoraOnly) {
  const std::string text = adapted("targets = [\"q_proj\", \"up_proj\"]\nbias = \"lora_only\"\n");
  EXPECT_EQ(num_lines(text), 3u * 2 * 2 + 3) << text;
  EXPECT_HAS(text, "model.layers.1.self_attn.q_proj.bias\n");
  EXPECT_FALSE(has_text(text, "k_proj.bias"));
  EXPECT_HAS(adapted("bias = \"all\"\n"), "adapter.bias = \"all\" is not \"none\" or \"lora_only\"");
}

TEST(LoraInit, OfOtherKindsIsRefused) {
  for (const char* init : {"pissa", "olora", "eva", "loftq", "orthogonal"})
    EXPECT_HAS(adapted("init = \"" + std::string(init) + "\"\n"), " is not \"kaiming\" or \"gaussian\"");
  EXPECT_EQ(num_lines(adapted("init = \"gaussian\"\n")), 3u * 7 * 2);
}

TEST(LoraOptions, OutOfRangeAreRefused) {
  EXPECT_HAS(adapted("dropout = 1.0\n"), "adapter.dropout = 1.0");
  EXPECT_HAS(adapted("alpha = -1.0\n"), "adapter.alpha = -1.0");
  EXPECT_HAS(adapted("lora_plus_ratio = 0.0\n"), "adapter.lora_plus_ratio = 0.0");
  EXPECT_HAS(adapted("r = 8\n"), "unknown key 'adapter.r' of PEFT: use rank");
  EXPECT_HAS(adapted("use_dora = true\n"), "DoRA is not available in this version");
}

TEST(LoraOptions, ReachTheParametersTheyName) {
  PlannedRank rank(with_lora("rank = 4\nrank_pattern = { down_proj = 8 }\nlora_plus_ratio = 16.0\n"), 1, 0,
                   {"export.plugin=safetensors"});
  const auto& a = *rank.parameters().find("model.layers.0.mlp.up_proj.lora_A.weight");
  const auto& b = *rank.parameters().find("model.layers.0.mlp.down_proj.lora_B.weight");
  EXPECT_EQ(a.local_shape, (std::vector<int64_t>{4, 48}));
  EXPECT_EQ(b.local_shape, (std::vector<int64_t>{48, 8}));
  EXPECT_EQ(a.lr_scale, 1);
  EXPECT_EQ(b.lr_scale, 16);
  EXPECT_EQ(a.init, CHASSIS_INIT_UNIFORM);
  EXPECT_DOUBLE_EQ(a.init_std, 1 / std::sqrt(48.0));
  EXPECT_EQ(b.init, CHASSIS_INIT_ZEROS);
}

TEST(AnAdapter, IsTheOnlyOneOfARun) { EXPECT_HAS(adapted("[[adapter]]\nplugin = \"lora\"\n"), "run.toml:37"); }

// PEFT's files have one branch for weights that they join.
TEST(JoinedLinears, AreRefused) {
  const std::string text = adapted("", {"model.plugin=phi3", "model.config.attention_bias=false"});
  EXPECT_HAS(text,
             "adapter.targets: files join the weights of 3 linears in module 'model.layers.0.self_attn.qkv_proj'");
}

}  // namespace
}  // namespace chassis::test
