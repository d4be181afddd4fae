// config.json of the Llama family, as transformers writes it: both spellings of rope and dtype.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

using Json = nlohmann::ordered_json;

struct Rope {
  std::string type = "default";  // default, linear, llama3
  double theta = 10000.0;
  double factor = 1.0;           // linear, llama3
  double low_freq_factor = 1.0;  // llama3, and the two below
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;
};

// Defaults are those of transformers' LlamaConfig.
struct Config {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 128;
  std::string function = "silu";  // as named in chassis/op.h
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  int64_t max_position_embeddings = 0;  // 0: not in the source
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  Rope rope;
  Json source;                            // as read
  std::vector<std::string> unknown_keys;  // of the source
};

// Throws for what the family cannot do, with names and numbers.
Config parse_config(std::string_view text);

// A complete config.json; keys of the source that do not affect the program are copied.
std::string write_config(const Config& config);

// head_dim/2 angles per position, in float32 arithmetic as in transformers' modeling_rope_utils.
std::vector<double> inverse_frequencies(const Rope& rope, int64_t head_dim);

}  // namespace llama
