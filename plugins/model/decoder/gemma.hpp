// Defaults and keys that Gemma 2 and 3 share.
#pragma once

#include <cmath>

#include "families.hpp"

namespace decoder {

inline Config gemma_defaults(int64_t vocab_size, int64_t max_positions) {
  return {.vocab_size = vocab_size,
          .hidden_size = 2304,
          .intermediate_size = 9216,
          .num_hidden_layers = 26,
          .num_attention_heads = 8,
          .num_key_value_heads = 4,
          .head_dim = 256,
          .function = "gelu_tanh",
          .max_position_embeddings = max_positions,
          .tie_word_embeddings = true,
          .norm_offset = 1,
          .post_norms = true,
          .scale_embedding = true};
}

// Returns 0 if the key is null. In float32 a far smaller cap would be 0, which means none, and a far larger one
// infinite.
inline double read_cap(Reader& reader, std::string_view key, double fallback) {
  if (reader.contains(key) && reader.find(key) == nullptr) return 0;
  const double cap = reader.positive(key, fallback);
  if (cap != 0 && (cap < 1e-6 || cap > 1e30)) reader.fail(key, " is ", cap, ", expected 1e-6 to 1e30, or null");
  return cap;
}

inline void read_gemma(Reader& reader, Config& config) {
  config.query_scale = 1 / std::sqrt(reader.positive("query_pre_attn_scalar", 256));
  config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
  reader.require_neutral("use_bidirectional_attention", false);
  reader.ignore({"hidden_act", "cache_implementation", "sliding_window_size"});  // transformers reads hidden_activation
}

inline void write_gemma(const Config& config, Json& out) {
  if (!out.contains("query_pre_attn_scalar")) out["query_pre_attn_scalar"] = 256;
  out["attention_bias"] = config.qkv_bias;
  out["final_logit_softcapping"] = config.logit_softcap != 0 ? Json(config.logit_softcap) : Json();
  out["sliding_window"] = config.sliding_window != 0 ? Json(config.sliding_window) : Json();
}

}  // namespace decoder
