// Which options and keys of adapter_config.json give experts a branch, what is refused, and what is written for PEFT.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/plugins/adapter/lora/adapted.hpp"

namespace chassis::test {
namespace {

using nlohmann::json;

const std::string kSizes =
    "vocab_size = 96, hidden_size = 48, intermediate_size = 40, num_hidden_layers = 2, num_attention_heads = 4, "
    "num_key_value_heads = 2, ";
const std::string kMixtral =
    "model={ plugin = \"mixtral\", config = { " + kSizes + "num_local_experts = 4, num_experts_per_tok = 2 } }";
const std::string kQwen2Moe = "model={ plugin = \"qwen2_moe\", config = { " + kSizes +
                              "num_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 20, "
                              "shared_expert_intermediate_size = 24 } }";
const std::string kLlama4 = "model={ plugin = \"llama4\", config = { " + kSizes +
                            "head_dim = 12, intermediate_size_mlp = 56, num_local_experts = 4, num_experts_per_tok = "
                            "1, attention_chunk_size = 8 } }";
constexpr const char* kBoth = "target_parameters = [\"experts.gate_up_proj\", \"experts.down_proj\"]\n";

std::string with(const std::string& model, const std::string& options) {
  return adapted("rank = 4\n" + options,
                 {model, "kernels.plugins=[\"grouped\", \"fused\", \"aten\"]", "attention.plugin=interval"});
}
json config_of(const std::string& model, const std::string& options) {
  PlannedRank rank(with_lora("rank = 4\n" + options), 1, 0,
                   {model, "kernels.plugins=[\"grouped\", \"fused\", \"aten\"]", "attention.plugin=interval",
                    "export.plugin=safetensors"});
  return json::parse(rank.session().adapter()->plugin().config("base", "{}"));
}

TEST(LoraExperts, GetNoBranchWithAllLinear) {
  EXPECT_EQ(num_lines(with(kMixtral, "")), 2u * 4 * 2);
  EXPECT_EQ(num_lines(with(kQwen2Moe, "")), 2u * (4 + 3) * 2) << "a shared expert is linears";
}

TEST(LoraExperts, GetThoseOfTargetParameters) {
  const std::string text = with(kMixtral, kBoth);
  EXPECT_EQ(num_lines(text), 2u * (4 * 2 + 5));
  EXPECT_HAS(text, "model.layers.1.mlp.experts.gate_proj.lora_A.weight\n");
  EXPECT_HAS(text, "model.layers.1.mlp.experts.up_proj.lora_B.weight\n");
  EXPECT_EQ(text.find("up_proj.lora_A"), std::string::npos) << "gate and up share A";
  EXPECT_EQ(num_lines(with(kMixtral, "targets = []\ntarget_parameters = [\"mlp.experts.down_proj\"]\n")), 2u * 2);
  EXPECT_EQ(num_lines(with(kMixtral, "targets = []\nlayers = \"1\"\n" + std::string(kBoth))), 5u);
  EXPECT_EQ(num_lines(with(kLlama4, "targets = []\n" + std::string(kBoth))), 2u * 5);
}

TEST(LoraExperts, GetThoseOfTargetsThatMeanNoLinear) {
  EXPECT_EQ(num_lines(with(kMixtral, "targets = [\"w1\", \"w2\", \"w3\"]\n")), 2u * 3 * 2);
  EXPECT_EQ(num_lines(with(kQwen2Moe, "targets = [\"gate_proj\"]\n")), 2u * 2) << "the shared expert's alone";
  EXPECT_EQ(num_lines(with(kQwen2Moe, "targets = ['.*\\.experts\\.\\d+\\.gate_proj', \"gate_proj\"]\n")), 2u * 4);
  EXPECT_EQ(num_lines(with(kMixtral, "targets = [\"w1\", \"w2\"]\nexclude = [\"w1\"]\n")), 2u * 2);
  EXPECT_EQ(num_lines(with(kMixtral, "targets = [\"w1\"]\nlayers = \"0\"\n")), 2u);
}

constexpr const char* kRouterParameter = "targets = []\ntarget_parameters = [\"mlp.gate.weight\"]\n";

TEST(LoraRouters, GetABranchIfTheyAreNamed) {
  for (const std::string& options : {std::string("targets = [\"gate\"]\n"), std::string(kRouterParameter)}) {
    const std::string text = with(kMixtral, options);
    EXPECT_EQ(num_lines(text), 2u * 2) << text;
    EXPECT_HAS(text, "model.layers.1.mlp.gate.lora_A.weight\n");
    EXPECT_HAS(text, "model.layers.1.mlp.gate.lora_B.weight\n");
  }
  EXPECT_EQ(num_lines(with(kQwen2Moe, "targets = [\"gate\"]\n")), 2u * 2) << "the gate of the shared expert is another";
  EXPECT_EQ(num_lines(with(kQwen2Moe, "targets = [\"shared_expert_gate\"]\n")), 2u * 2);
  EXPECT_EQ(num_lines(with(kLlama4, "targets = [\"router\"]\n")), 2u * 2);
  EXPECT_EQ(num_lines(with(kMixtral, "targets = [\"gate\"]\nlayers = \"1\"\n")), 2u);
  EXPECT_EQ(num_lines(with(kMixtral, "targets = [\"gate\"]\nrank_pattern = { gate = 16 }\n")), 2u * 2)
      << "a rank above the number of experts, as PEFT allows";
}

TEST(LoraRouters, HavePeftsNamesInTheConfiguration) {
  const json by_module = config_of(kMixtral, "targets = [\"gate\", \"q_proj\"]\n");
  EXPECT_EQ(by_module.at("target_modules"), (json{"gate", "q_proj"}));
  EXPECT_FALSE(by_module.contains("target_parameters"));
  const json by_parameter =
      config_of(kMixtral, std::string(kRouterParameter) + "rank_pattern = { \"mlp.gate.weight\" = 2 }\n");
  EXPECT_EQ(by_parameter.at("target_modules"), json::array());
  EXPECT_EQ(by_parameter.at("target_parameters"), json::array({"mlp.gate.weight"}));
  EXPECT_EQ(by_parameter.at("rank_pattern"),
            (json{{"model.layers.0.mlp.gate.weight", 2}, {"model.layers.1.mlp.gate.weight", 2}}));
  const json with_experts = config_of(
      kMixtral, "targets = []\ntarget_parameters = [\"experts.down_proj\", \"mlp.gate.weight\"]\nlayers = \"1\"\n");
  EXPECT_EQ(with_experts.at("target_parameters"),
            (json{"model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.gate.weight"}));
}

TEST(LoraRouters, AreNamedOnce) {
  EXPECT_HAS(with(kMixtral, "targets = [\"gate\"]\ntarget_parameters = [\"mlp.gate.weight\"]\n"),
             "'model.layers.0.mlp.gate.weight' is that of 'model.layers.0.block_sparse_moe.gate', which targets mean "
             "too; leave it out of one");
}

TEST(LoraExperts, ThatCannotGetOneAreNamed) {
  EXPECT_HAS(with(kMixtral, "target_parameters = [\"mlp.gate.bias\"]\n"),
             "adapter.target_parameters: 'mlp.gate.bias' matches no parameter of experts or routers; the model has "
             "mlp.experts.down_proj, mlp.experts.gate_up_proj, mlp.gate.weight");
  EXPECT_HAS(adapted(kBoth), "'experts.gate_up_proj' matches nothing: the model has no experts");
  EXPECT_HAS(with(kMixtral, "targets = [\"experts.1.w1\"]\n"),
             "adapter.targets: 'experts.1.w1' and others match 1 of the 4 experts of "
             "'model.layers.0.block_sparse_moe.experts.0.w1'; all experts of a layer get a branch, or none");
  EXPECT_HAS(with(kMixtral, "targets = [\"w2\"]\ntarget_parameters = [\"experts.down_proj\"]\n"),
             "'model.layers.0.mlp.experts.down_proj' is that of 'model.layers.0.block_sparse_moe.experts.0.w2', which "
             "targets mean too; leave it out of one");
  EXPECT_HAS(with(kLlama4, "targets = [\"experts\"]\n"),
             "'experts' matches only experts, which files of this model hold as one parameter; name it in "
             "target_parameters: \"feed_forward.experts.gate_up_proj\"");
  EXPECT_HAS(with(kMixtral, "dropout = 0.1\n" + std::string(kBoth)),
             "0.1, but branches of target_parameters have no dropout, as in PEFT: set it to 0");
  EXPECT_HAS(with(kQwen2Moe, "rank_pattern = { \"experts.down_proj\" = 24 }\n" + std::string(kBoth)),
             "rank 24 of 'model.layers.0.mlp.experts.down_proj' is above 20, the smaller size of an expert's weight "
             "[48, 20]");
}

TEST(LoraExperts, AreNamedForPeft) {
  json config = config_of(kMixtral, kBoth);
  EXPECT_EQ(config["target_parameters"], (json{"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  EXPECT_EQ(config["target_modules"], (json{"k_proj", "o_proj", "q_proj", "v_proj"}));
  EXPECT_EQ(config["peft_version"], "0.21.0");
  config =
      config_of(kMixtral, "targets = []\nlayers = \"1\"\nalpha_pattern = { gate_up_proj = 16 }\n" + std::string(kBoth));
  EXPECT_EQ(config["target_modules"], json::array());
  EXPECT_EQ(config["target_parameters"],
            (json{"model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.gate_up_proj"}));
  EXPECT_EQ(config["alpha_pattern"], (json{{"model.layers.1.mlp.experts.gate_up_proj", 16.0}}));
  config = config_of(kMixtral, "targets = [\"w1\", \"w2\"]\nrank_pattern = { w2 = 8 }\n");
  EXPECT_EQ(config["target_modules"], (json{"w1", "w2"}));
  EXPECT_EQ(config["rank_pattern"], (json{{"model.layers.0.block_sparse_moe.experts.[0-9]+.w2", 8},
                                          {"model.layers.1.block_sparse_moe.experts.[0-9]+.w2", 8}}));
  EXPECT_FALSE(config.contains("target_parameters"));
  config = config_of(kQwen2Moe, "targets = ['.*\\.experts\\.\\d+\\.up_proj']\n");
  EXPECT_EQ(config["target_modules"].size(), 2u * 4) << "\"up_proj\" would mean the shared expert";
  EXPECT_EQ(config["target_modules"][7], "model.layers.1.mlp.experts.3.up_proj");
}

TEST(LoraExperts, AreReadFromPeftsFile) {
  const ScratchDirectory folder;
  const auto from_file = [&](const std::string& model, json config) {
    config.update(json{{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}});
    write_text(folder / "adapter_config.json", config.dump());
    return adapted("path = \"" + folder.path() + "\"\n",
                   {model, "kernels.plugins=[\"grouped\", \"fused\", \"aten\"]", "attention.plugin=interval"});
  };
  const json both = {"gate_up_proj", "down_proj"};
  EXPECT_EQ(num_lines(from_file(kMixtral, {{"target_modules", json::array()}, {"target_parameters", both}})), 2u * 5);
  EXPECT_EQ(num_lines(from_file(kMixtral, {{"target_parameters", both}, {"layers_to_transform", {0}}})), 2u * 5)
      << "PEFT ignores layers_to_transform for parameters";
  EXPECT_EQ(num_lines(from_file(kMixtral, {{"target_modules", {"q_proj", "w1", "w2", "w3"}}})), 2u * 4 * 2);
  json named = json::array();
  for (int e = 0; e < 4; ++e) named.push_back("model.layers.1.mlp.experts." + std::to_string(e) + ".up_proj");
  EXPECT_EQ(num_lines(from_file(kQwen2Moe, {{"target_modules", named}})), 2u);
  named.erase(2);
  EXPECT_HAS(from_file(kQwen2Moe, {{"target_modules", named}}), "match 3 of the 4 experts");
}

}  // namespace
}  // namespace chassis::test
