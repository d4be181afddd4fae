// The families that share the decoder, and GPT-2: sizes of published models, and what is refused.
#include <gtest/gtest.h>

#include "host/program/parameters.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

struct Published {
  std::string name, plugin, config;
  int64_t num_parameters;  // as transformers counts them
};

// From the published config.json, without keys that do not matter here.
const Published kPublished[] = {
    {"Qwen2.5-7B", "qwen2", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
     "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
     "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
     "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
     "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
     "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064})",
     7615616512},
    {"Qwen2.5-72B", "qwen2", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 8192,
     "intermediate_size": 29568, "max_position_embeddings": 131072, "max_window_layers": 80, "model_type": "qwen2",
     "num_attention_heads": 64, "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
     "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false, "use_sliding_window": false,
     "vocab_size": 152064})",
     72706203648},
    {"Qwen3-0.6B", "qwen3", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
     "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
     "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
     "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
     "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})",
     596049920},
    {"Qwen3-32B", "qwen3", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
     "hidden_size": 5120, "intermediate_size": 25600, "max_position_embeddings": 40960, "max_window_layers": 64,
     "model_type": "qwen3", "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8,
     "rms_norm_eps": 1e-06, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
     "use_sliding_window": false, "vocab_size": 151936})",
     32762123264},
    {"Mistral-7B-v0.1", "mistral", R"({"architectures": ["MistralForCausalLM"], "hidden_act": "silu",
     "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
     "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
     "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false, "vocab_size": 32000})",
     7241732096},
    {"gemma-2-9b", "gemma2", R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
     "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
     "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
     "hidden_size": 3584, "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "gemma2",
     "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8, "query_pre_attn_scalar": 256,
     "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
     "vocab_size": 256000})",
     9241705984},
    {"gemma-3-1b", "gemma3", R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
     "attn_logit_softcapping": null, "cache_implementation": "hybrid", "final_logit_softcapping": null,
     "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
     "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
     "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
     "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
     "sliding_window_pattern": 6, "vocab_size": 262144})",
     999885952},
    // The factors of its longrope, 48 each, are not retyped: they do not change the count.
    {"Phi-4-mini", "phi3", R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
     "attention_dropout": 0.0, "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
     "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false, "max_position_embeddings": 131072,
     "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
     "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
     "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
     "tie_word_embeddings": true, "vocab_size": 200064})",
     3836021760},
    {"gpt2", "gpt2", R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
     "embd_pdrop": 0.1, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
     "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})",
     124439808},
};

TEST(Families, PublishedModelsHaveTheirNumberOfParameters) {
  test::LoadedPlugins plugins;
  for (const Published& model : kPublished) {
    const Program program = plugins.record_model(model.plugin, model.config);
    EXPECT_EQ(ParameterTable(program, {}).num_elements(false), model.num_parameters) << model.name;
  }
}

// What `plugin` says to this config.json; "" if it takes it.
std::string refusal_of(const std::string& plugin, const std::string& config) {
  test::LoadedPlugins plugins;
  return ModelPlugin(plugins.create("model", plugin)).configure_refusal(config);
}

TEST(Families, RefuseWhatTheyDoNotCompute) {
  EXPECT_HAS(refusal_of("qwen2", R"({"rope_scaling": {"type": "yarn", "factor": 4.0}})"),
             "rope type 'yarn' is not supported by model 'qwen2' (supported: default, linear, llama3)");
  EXPECT_HAS(refusal_of("qwen2", R"({"architectures": ["Qwen2MoeForCausalLM"]})"),
             "are not supported by model 'qwen2' (supported: Qwen2ForCausalLM, Qwen2Model)");
  EXPECT_HAS(refusal_of("gemma3", R"({"attn_logit_softcapping": 50.0})"),
             "attn_logit_softcapping 50.0 is not supported by model 'gemma3'");
  EXPECT_HAS(refusal_of("gemma2", R"({"use_bidirectional_attention": true})"),
             "use_bidirectional_attention true is not supported by model 'gemma2'");
  EXPECT_HAS(refusal_of("phi3", R"({"resid_pdrop": 0.1})"), "resid_pdrop 0.1 is not supported by model 'phi3'");
  EXPECT_HAS(refusal_of("gpt2", R"({"scale_attn_by_inverse_layer_idx": true})"),
             "scale_attn_by_inverse_layer_idx true is not supported by model 'gpt2'");
  EXPECT_HAS(refusal_of("gpt2", R"({"n_embd": 10, "n_head": 3})"), "n_embd 10 is not a multiple of n_head 3");
}

TEST(Families, RefuseFieldsThatDisagree) {
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

}  // namespace
}  // namespace chassis
