// Refusals of a config.json by the families that share the decoder, and by GPT-2.
#include <gtest/gtest.h>

#include "host/compile/parameters.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

// The refusal of this config.json by `plugin`; "" if it is accepted.
std::string refusal_of(const std::string& plugin, const std::string& config) {
  test::LoadedPlugins plugins;
  return ModelPlugin(plugins.create("model", plugin)).configure_refusal(config);
}

TEST(Families, RefuseWhatTheyDoNotCompute) {
  EXPECT_HAS(refusal_of("qwen2", R"({"rope_scaling": {"type": "yarn", "factor": 4.0}})"),
             "rope type 'yarn' is not supported by model 'qwen2' (supported: default, linear, llama3)");
  EXPECT_HAS(refusal_of("qwen2", R"({"architectures": ["Qwen2MoeForCausalLM"]})"),
             "are not supported by model 'qwen2' (supported: Qwen2ForCausalLM, Qwen2Model, "
             "Qwen2ForSequenceClassification)");
  EXPECT_HAS(refusal_of("gemma3", R"({"attn_logit_softcapping": 50.0})"),
             "attn_logit_softcapping 50.0 is not supported by model 'gemma3'");
  EXPECT_HAS(refusal_of("gemma2", R"({"use_bidirectional_attention": true})"),
             "use_bidirectional_attention true is not supported by model 'gemma2'");
  EXPECT_HAS(refusal_of("phi3", R"({"resid_pdrop": 0.1})"), "resid_pdrop 0.1 is not supported by model 'phi3'");
  EXPECT_HAS(refusal_of("gpt2", R"({"scale_attn_by_inverse_layer_idx": true})"),
             "scale_attn_by_inverse_layer_idx true is not supported by model 'gpt2'");
  EXPECT_HAS(refusal_of("gpt2", R"({"n_embd": 10, "n_head": 3})"), "n_embd 10 is not a multiple of n_head 3");
}

TEST(Families, RefuseRopeTypesAndActivationsByName) {
  const std::pair<const char*, const char*> types[] = {
      {"mistral", "default, linear, llama3"}, {"qwen2", "default, linear, llama3"},
      {"qwen3", "default, linear, llama3"},   {"gemma2", "default, linear, llama3"},
      {"gemma3", "default, linear, llama3"},  {"phi3", "default, longrope"}};
  for (const auto& [plugin, supported] : types) {
    for (const std::string type : {"yarn", "dynamic", "proportional"})
      EXPECT_HAS(refusal_of(plugin, R"({"rope_scaling": {"rope_type": ")" + type + R"(", "factor": 4.0}})"),
                 "rope type '" + type + "' is not supported by model '" + plugin + "' (supported: " + supported + ")");
    const std::string key = std::string(plugin).starts_with("gemma") ? "hidden_activation" : "hidden_act";
    EXPECT_HAS(refusal_of(plugin, "{\"" + key + "\": \"xielu\"}"),
               key + " 'xielu' is not supported by model '" + plugin + "' (supported: silu, ");
  }
  EXPECT_HAS(refusal_of("gpt2", R"({"activation_function": "tanh"})"),
             "activation_function 'tanh' is not supported by model 'gpt2'");
}

TEST(Families, RefuseFieldsThatDisagree) {
  for (const std::string plugin : {"mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"})
    EXPECT_HAS(refusal_of(plugin, R"({"num_attention_heads": 6, "num_key_value_heads": 4})"),
               "num_attention_heads 6 is not a multiple of num_key_value_heads 4");
  EXPECT_HAS(refusal_of("phi3", R"({"hidden_size": 100, "num_attention_heads": 3, "num_key_value_heads": 3})"),
             "hidden_size 100 is not a multiple of num_attention_heads 3, and head_dim is not given");
  EXPECT_HAS(refusal_of("qwen2", R"({"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 5000.0}})"),
             "rope_theta 10000 contradicts rope_parameters.rope_theta 5000");
  EXPECT_HAS(refusal_of("gemma3", R"({"rope_local_base_freq": 10000.0,
                                      "rope_parameters": {"sliding_attention": {"rope_theta": 5000.0}}})"),
             "rope_local_base_freq 10000 contradicts rope_parameters.sliding_attention.rope_theta 5000");
  EXPECT_HAS(refusal_of("qwen2", R"({"architectures": ["Qwen2ForSequenceClassification"], "num_labels": 3,
                                     "id2label": {"0": "a", "1": "b"}})"),
             "num_labels is 3, but id2label has 2 labels");
  EXPECT_HAS(refusal_of("qwen3", R"({"num_hidden_layers": 2, "layer_types": ["full_attention"]})"),
             "layer_types has 1 entries, but num_hidden_layers is 2");
  EXPECT_HAS(refusal_of("qwen3", R"({"num_hidden_layers": 1, "layer_types": ["linear_attention"]})"),
             "layer_types[0] \"linear_attention\" is not supported by model 'qwen3' (supported: full_attention, "
             "sliding_attention)");
  EXPECT_HAS(refusal_of("qwen3", R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})"),
             "layer_types names sliding layers, but use_sliding_window is false");
  EXPECT_HAS(refusal_of("gemma2", R"({"sliding_window": null})"),
             "layer 0 has sliding attention, but there is no sliding_window");
  EXPECT_HAS(refusal_of("phi3", R"({"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]},
                                    "original_max_position_embeddings": 4096})"),
             "the rope's short_factor has 1 numbers, expected 48 for 96 rotated dims");
  EXPECT_HAS(refusal_of("phi3", R"({"partial_rotary_factor": 0.01})"),
             "partial_rotary_factor 0.01 of head_dim 96 gives 0 rotated dims");
}

TEST(Families, RefuseExpertsThatTheyDoNotCompute) {
  EXPECT_HAS(refusal_of("olmoe", R"({"num_experts": 4, "num_experts_per_tok": 5})"),
             "num_experts_per_tok 5 is above the number of experts, 4");
  EXPECT_HAS(refusal_of("olmoe", R"({"num_experts": 4, "num_local_experts": 6})"),
             "num_experts 4 contradicts num_local_experts 6");
  EXPECT_HAS(refusal_of("olmoe", R"({"hidden_size": 64, "num_attention_heads": 4, "head_dim": 20})"),
             "num_attention_heads 4 times head_dim 20 is 80, not hidden_size 64");
  EXPECT_HAS(refusal_of("olmoe", R"({"clip_qkv": -1.0})"), "clip_qkv is -1, expected above 0");
  EXPECT_HAS(refusal_of("llama4", R"({"num_local_experts": 4, "num_experts_per_tok": 5})"),
             "num_experts_per_tok 5 is above the number of experts, 4");
  EXPECT_HAS(refusal_of("llama4", R"({"router_jitter_noise": 0.1})"),
             "router_jitter_noise 0.1 is not supported by model 'llama4'");
  EXPECT_HAS(refusal_of("llama4", R"({"num_hidden_layers": 4, "moe_layers": [1, 4]})"),
             "moe_layers has 4, which is not one of the 4 layers from 0 on");
  EXPECT_HAS(refusal_of("llama4", R"({"num_hidden_layers": 4, "no_rope_layers": [1, 0]})"),
             "no_rope_layers has 2 entries, but num_hidden_layers is 4");
  EXPECT_HAS(refusal_of("llama4", R"({"num_hidden_layers": 1, "no_rope_layers": [2]})"),
             "no_rope_layers[0] is 2, expected 1 (with rope) or 0");
  EXPECT_HAS(refusal_of("llama4", R"({"attention_chunk_size": null})"),
             "layer 0 has chunked attention, but there is no attention_chunk_size");
  EXPECT_HAS(refusal_of("llama4", R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})"),
             "layer_types[0] \"sliding_attention\" is not supported by model 'llama4' (supported: full_attention, "
             "chunked_attention)");
  EXPECT_HAS(refusal_of("llama4", R"({"attn_temperature_tuning": 3})"), "attn_temperature_tuning is 3, expected true");
  EXPECT_HAS(refusal_of("llama4", R"({"model_type": "llama4"})"), "model_type 'llama4' needs a text_config, a table");
  EXPECT_HAS(refusal_of("llama4", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"),
             "rope type 'yarn' is not supported by model 'llama4' (supported: default, llama3)");
}

TEST(Families, RefuseTwoNamesOfOneNumberThatDisagree) {
  EXPECT_HAS(refusal_of("gpt2", R"({"n_head": 4, "num_attention_heads": 2})"),
             "n_head 4 contradicts num_attention_heads 2");
  EXPECT_HAS(refusal_of("gpt2", R"({"n_layer": 2, "num_hidden_layers": 1})"),
             "n_layer 2 contradicts num_hidden_layers 1");
  EXPECT_HAS(refusal_of("gpt2", R"({"n_embd": 36, "hidden_size": 24})"), "n_embd 36 contradicts hidden_size 24");
  EXPECT_HAS(refusal_of("gpt2", R"({"n_positions": 64, "max_position_embeddings": 128})"),
             "n_positions 64 contradicts max_position_embeddings 128");
  EXPECT_EQ(refusal_of("gpt2", R"({"n_head": 4, "num_attention_heads": 4, "n_layer": null, "num_hidden_layers": 2})"),
            "");
  EXPECT_HAS(refusal_of("gemma3", R"({"sliding_window_pattern": 6, "_sliding_window_pattern": 2})"),
             "sliding_window_pattern 6 contradicts _sliding_window_pattern 2");
  EXPECT_HAS(refusal_of("qwen2", R"({"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}})"),
             "rope_scaling.type 'linear' contradicts rope_scaling.rope_type 'default'");
  EXPECT_HAS(refusal_of("qwen2", R"({"rope_theta": 5000.0, "rope_scaling": {"type": "default", "rope_theta": 1.0}})"),
             "rope_theta 5000 contradicts rope_scaling.rope_theta 1");
}

TEST(Families, RefuseALongRopeWithTwoOriginalLengths) {
  const auto config = [](const std::string& table) {
    return R"({"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
               "original_max_position_embeddings": 64, ")" +
           table + R"(": {"type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2]}})";
  };
  for (const std::string table : {"rope_scaling", "rope_parameters"}) {
    std::string text = config(table);
    EXPECT_EQ(refusal_of("phi3", text), "");
    text.insert(text.find("\"short_factor\""), "\"original_max_position_embeddings\": 128, ");
    EXPECT_HAS(refusal_of("phi3", text),
               "original_max_position_embeddings 64 contradicts " + table + ".original_max_position_embeddings 128");
  }
}

TEST(Families, RefuseCapsThatFloat32DoesNotHave) {
  for (const std::string key : {"final_logit_softcapping", "attn_logit_softcapping"})
    for (const std::string cap : {"1e-300", "1e-7", "1e300"})
      EXPECT_HAS(refusal_of("gemma2", "{\"" + key + "\": " + cap + "}"), "expected 1e-6 to 1e30, or null");
  EXPECT_HAS(refusal_of("gemma3", R"({"final_logit_softcapping": 1e-300})"), "expected 1e-6 to 1e30, or null");
  EXPECT_EQ(refusal_of("gemma2", R"({"final_logit_softcapping": null, "attn_logit_softcapping": 1e-6})"), "");
}

}  // namespace
}  // namespace chassis
