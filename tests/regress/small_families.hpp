// A small model of every family, with every part that distinguishes it from the others, as the lines of [model].
#pragma once

#include <string>
#include <vector>

namespace chassis::test {

struct SmallFamily {
  std::string name, model;
  bool has_experts() const { return model.find("experts") != std::string::npos; }
};

inline std::vector<SmallFamily> small_families() {
  const std::string sizes =
      "vocab_size = 101, hidden_size = 32, intermediate_size = 56, num_hidden_layers = 3, "
      "num_attention_heads = 4, num_key_value_heads = 2, initializer_range = 0.1";
  const auto family = [&](const std::string& name, const std::string& more) {
    return SmallFamily{name, "plugin = \"" + name + "\"\nconfig = { " + sizes + more + " }\n"};
  };
  const std::string gemma = ", head_dim = 10, query_pre_attn_scalar = 12, sliding_window = 9";
  return {
      family("mistral", ", sliding_window = 9"),
      family("qwen2",
             ", use_sliding_window = true, sliding_window = 9, max_window_layers = 1, "
             "tie_word_embeddings = true"),
      family("qwen3", ", head_dim = 10, attention_bias = true"),
      family("gemma2", gemma + ", attn_logit_softcapping = 2.0, final_logit_softcapping = 3.0"),
      family("gemma3", gemma + ", sliding_window_pattern = 2, rope_scaling = { rope_type = \"linear\", factor = 4.0 }"),
      family("phi3",
             ", partial_rotary_factor = 0.5, original_max_position_embeddings = 16, rope_scaling = { type = "
             "\"longrope\", short_factor = [1.0, 1.5], long_factor = [2.0, 4.0] }"),
      {"deepseek_v2",
       "plugin = \"deepseek_v2\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, "
       "num_hidden_layers = 3, num_attention_heads = 4, initializer_range = 0.1, n_routed_experts = 6, "
       "num_experts_per_tok = 2, moe_intermediate_size = 20, n_shared_experts = 1, kv_lora_rank = 12, q_lora_rank = "
       "14, "
       "qk_nope_head_dim = 6, qk_rope_head_dim = 4, v_head_dim = 8, first_k_dense_replace = 1, topk_method = "
       "\"group_limited_greedy\", n_group = 3, topk_group = 2, rope_scaling = { rope_type = \"yarn\", factor = 4.0, "
       "original_max_position_embeddings = 16, mscale = 0.7, mscale_all_dim = 0.8 } }\n"},
      {"llama4",
       "plugin = \"llama4\"\nconfig = { vocab_size = 101, hidden_size = 32, intermediate_size = 20, "
       "intermediate_size_mlp = "
       "56, num_hidden_layers = 3, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 10, initializer_range "
       "= "
       "0.1, num_local_experts = 6, num_experts_per_tok = 2, interleave_moe_layer_step = 2, no_rope_layer_interval = "
       "2, "
       "attention_chunk_size = 5, floor_scale = 4, attn_scale = 0.5 }\n"},
      family("mixtral", ", num_local_experts = 5, num_experts_per_tok = 2"),
      family("olmoe", ", num_experts = 6, num_experts_per_tok = 2, clip_qkv = 0.9"),
      family("qwen2_moe",
             ", num_experts = 6, num_experts_per_tok = 3, moe_intermediate_size = 20, "
             "shared_expert_intermediate_size = 24, mlp_only_layers = [1]"),
      family("qwen3_moe",
             ", head_dim = 10, num_experts = 6, num_experts_per_tok = 2, moe_intermediate_size = 24, norm_topk_prob = "
             "true, decoder_sparse_step = 2"),
      {"gpt2",
       "plugin = \"gpt2\"\nconfig = { vocab_size = 101, n_embd = 30, n_layer = 3, n_head = 5, n_positions = 64, "
       "initializer_range = 0.1 }\n"}};
}

// Families whose parts all stand in others too. The tests of strategies run them with the label slow.
inline bool is_like_others(const SmallFamily& family) {
  for (const char* name : {"mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"})
    if (family.name == name) return true;
  return false;
}
inline std::vector<SmallFamily> distinct_families() {
  std::vector<SmallFamily> families = small_families();
  std::erase_if(families, is_like_others);
  return families;
}
inline std::vector<SmallFamily> other_families() {
  std::vector<SmallFamily> families = small_families();
  std::erase_if(families, [](const SmallFamily& family) { return !is_like_others(family); });
  return families;
}

// Providers of kernels in TOML, with one for experts if the family has them.
inline std::string with_experts(std::string kernels, const SmallFamily& family) {
  if (family.has_experts()) kernels.insert(kernels.rfind(']'), ", \"grouped\"");
  return kernels;
}

// The same model with heads that two ranks can divide.
inline std::string with_even_heads(const SmallFamily& family) {
  std::string model = family.model;
  const std::string odd = "n_embd = 30, n_layer = 3, n_head = 5";
  if (const size_t at = model.find(odd); at != std::string::npos)
    model.replace(at, odd.size(), "n_embd = 32, n_layer = 3, n_head = 4");
  return model;
}

}  // namespace chassis::test
