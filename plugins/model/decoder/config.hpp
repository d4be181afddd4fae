// config.json of decoder-only families, as transformers 4 and 5 write it: the keys that all share, and those that a
// family adds to them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chassis/builder.hpp"
#include "reader.hpp"
#include "rope.hpp"

namespace decoder {

// A mixture of experts in place of the MLP of a layer: out = Σ weight_e · MLP_e(x) over the chosen experts, plus a
// shared MLP if there is one.
struct Experts {
  int64_t num_experts = 0;        // 0: every layer has one MLP
  int64_t num_chosen = 0;         // of a token
  int64_t width = 0;              // of an expert's MLP
  std::string score = "softmax";  // of expert_weights in chassis/op.h
  bool normalize = false;         // weights of a token sum to 1
  double factor = 1;              // of the weights
  int64_t groups = 1, top_groups = 1;
  int64_t shared_width = 0;         // 0: no shared MLP
  bool shared_gate = false;         // the shared MLP is scaled by sigmoid(x · gate)
  bool scales_input = false;        // out = Σ MLP_e(weight_e · x)
  chassis::Balance balance = {};
  std::vector<bool> is_dense = {};  // by layer: it has an MLP of intermediate_size; empty: no layer has

  bool are_in(size_t layer) const { return num_experts != 0 && (is_dense.empty() || !is_dense[layer]); }
};

// Attention through low-rank latents (DeepSeek-AI 2024, "DeepSeek-V2"): keys and values of all heads come from one
// vector of kv_rank numbers and a rotated key that the heads share.
struct LatentAttention {
  int64_t kv_rank = 0;  // 0: attention is not of this kind
  int64_t q_rank = 0;   // 0: queries have no latent
  int64_t plain_dim = 0, rotary_dim = 0, value_dim = 0;
};

// The configuration from which a program is recorded. Defaults are those of transformers' LlamaConfig.
struct Config {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 0;  // 0 as a default: num_attention_heads
  int64_t head_dim = 0;             // 0 as a default: hidden_size / num_attention_heads
  std::string function = "silu";    // as named in chassis/op.h
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  int64_t max_position_embeddings = 0;  // 0: not in the source
  bool tie_word_embeddings = false;
  int64_t num_labels = 0;  // of a sequence-classification head, in place of that to the vocabulary; 0: none
  Rope rope = {};

  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;                             // rms_norm of every head of q and k, before rope
  bool plain_qk_norm = false;                       // the same without weights, after rope
  double norm_offset = 0;                           // 1: gains are 1 + weight
  bool post_norms = false;                          // norms also after attention and MLP
  bool scale_embedding = false;                     // by √hidden_size
  double query_scale = 0;                           // of attention scores; 0: 1/√head_dim
  double attention_softcap = 0, logit_softcap = 0;  // 0: none

  bool qk_norm_whole = false;  // rms_norm of all heads of q, and of k, as one
  double qkv_clip = 0;         // q, k and v are clamped to ±; 0: not
  Experts experts = {};
  LatentAttention latent = {};

  bool rope_interleaved = false;       // pairs of neighbours are rotated, not those of two halves
  std::vector<bool> has_no_rope = {};  // by layer; empty: all rotate
  // The numbers of position_scale, of queries in layers without rope; floor_scale 0: they are not scaled.
  int64_t floor_scale = 0;
  double attn_scale = 0;

  int64_t attention_chunk = 0;        // layers that slide see their chunk of the document, not a window; 0: a window
  int64_t dense_width = 0;            // of the MLP in layers without experts; 0: intermediate_size
  int64_t sliding_window = 0;         // 0: none
  std::vector<bool> is_sliding = {};  // by layer; empty: none is
  bool has_local_rope = false;        // sliding layers rotate by local_rope
  Rope local_rope = {};

  Json source = nullptr;                            // as read; of a model of text and images, the part of the text
  bool has_towers = false;                          // the source has more than the text model
  std::vector<std::string> unknown_keys = {};       // of the source
  std::vector<std::pair<std::string, std::string>> losses_that_are_off = {};  // keys of auxiliary losses, and why
};

// Names in files of an expert's linears, each after the layer's prefix, and of the router and the shared MLP.
struct ExpertNames {
  std::string_view router = "mlp.gate", experts = "mlp.experts";
  std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view stacked = "mlp.switch_mlp";    // the linears of all experts, each a tensor [E, out, in]
  std::string_view shared = "mlp.shared_expert";  // in the program too
  // Published files have gate_up_proj [E, in, 2·out] and down_proj [E, in, out], where other families have a tensor for
  // each linear of each expert.
  bool is_joined = false;
};

struct Family {
  std::string_view name;                        // of the plugin
  std::string_view model_type;                  // in config.json
  std::vector<std::string_view> architectures;  // the first is that of exports, unless the model classifies
  RopeSupport ropes = {};
  std::string_view function_key = "hidden_act";
  ExpertNames expert_names = {};
  std::string_view mlp = "mlp";  // the MLP of a layer, in files and in the program
  // model_type and architecture of models of text and images whose "text_config" is of this family; "": none.
  std::string_view outer_model_type = "", outer_architecture = "";
  bool writes_head_dim = true;  // also where it is hidden_size / num_attention_heads
  Config defaults = {};
  // The family's own keys, in both directions. `read` runs after the keys that all share.
  std::function<void(Reader&, Config&)> read = [](Reader&, Config&) {};
  std::function<void(const Config&, Json&)> write = [](const Config&, Json&) {};
};

// Throws for whatever the family cannot do, with names and numbers.
Config parse_config(const Family& family, std::string_view text);
// A complete config.json; keys of the source that do not affect the program are copied.
std::string write_config(const Family& family, const Config& config);

// A bound against hostile files: each expert is a tensor of its own on disk.
inline constexpr int64_t kMaxExperts = 4096;

// Keys that families with experts share, in both directions; `count_key` is the family's name of their number. Refuses
// more experts for a token than there are.
void read_experts(Reader& reader, Config& config, int64_t num_experts, int64_t chosen, int64_t width);
void write_experts(const Config& config, std::string_view count_key, Json& out);
// The weight of the auxiliary loss; `fallback` is that of the family's configuration in transformers.
void read_balance(Reader& reader, Config& config, double fallback = 0.001);

// The layers with experts: all but those in mlp_only_layers, and of these each decoder_sparse_step-th.
void read_expert_layers(Reader& reader, Config& config);

// Reads layer_types, "sliding_attention" (or the name given) or "full_attention" for each layer; if the key is absent,
// layer i slides if by_default(i).
void read_layer_types(Reader& reader, Config& config, const std::string& sliding_name,
                      const std::function<bool(int64_t layer)>& by_default);

// Reads layer_types. First reads sliding_window, with this fallback; layers that slide need it.
void read_sliding_layers(Reader& reader, Config& config, int64_t window_fallback,
                         const std::function<bool(int64_t layer)>& by_default);

// Sequence classification: whether an architecture of transformers has such a head, and the number of its labels.
inline bool classifies(std::string_view architecture) { return architecture.ends_with("ForSequenceClassification"); }
int64_t read_num_labels(Reader& reader);

// The op's name for an activation of transformers; `fallback` is a name of the op.
std::string read_function(Reader& reader, std::string_view key, std::string_view fallback);

}  // namespace decoder
