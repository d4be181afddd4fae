// Recording: B rows, T positions; everything else is a named dim.
#include "decoder.hpp"

#include <cmath>

namespace decoder {

using namespace chassis;

namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

void Decoder::configure(std::string_view config_json) {
  config_ = parse_config(family_, config_json);
  size_t num_named = 0;  // limited, since a hostile file may have any number of keys
  for (const std::string& key : config_.unknown_keys) {
    host().count(num_named++ < 20 ? "config key " + key : "other config keys", "key '", key, "' is unknown to model '",
                 family_.name, "' and ignored");
  }
}

void Decoder::record(Builder& b) {
  b.init_std = config_.initializer_range;
  hidden_ = b.dim("hidden", config_.hidden_size);
  vocab_ = b.dim("vocab", config_.vocab_size);
  heads_ = b.dim("heads", config_.num_attention_heads);
  kv_heads_ = b.dim("kv_heads", config_.num_key_value_heads);
  head_dim_ = b.dim("head_dim", config_.head_dim);
  ffn_ = b.dim("ffn", config_.intermediate_size);

  b.chain("embed", "model", b.block("embed", [&] {
    Value x = b.embedding(b.field("input_ids"), "embed_tokens.weight", vocab_, {hidden_});
    if (config_.scale_embedding) x = b.scale(x, std::sqrt(static_cast<double>(config_.hidden_size)));
    b.output("hidden", x);
  }));

  // One block type for each kind of layer that occurs.
  const auto slides = [&](size_t i) { return !config_.is_sliding.empty() && config_.is_sliding[i]; };
  std::vector<Block> layers;
  Block full{}, sliding{};
  bool has_full = false, has_sliding = false;
  for (size_t i = 0; i < static_cast<size_t>(config_.num_hidden_layers); ++i) {
    if (slides(i) && !std::exchange(has_sliding, true)) sliding = layer(b, "sliding_layer", true);
    if (!slides(i) && !std::exchange(has_full, true)) full = layer(b, "layer", false);
    layers.push_back(slides(i) ? sliding : full);
  }
  b.chain("layers", "model.layers.{i}", layers);

  b.chain("head", "", b.block("head", [&] {
    const Value x = norm(b, b.input("hidden", {hidden_}), "model.norm.weight");
    if (config_.num_labels != 0) {
      b.output("scores", b.score(x, "score.weight", b.dim("labels", config_.num_labels)));
      return;
    }
    b.output("hidden", x);
    const std::string tied_to = config_.tie_word_embeddings ? kEmbedding : "";
    Value logits = b.linear(x, "lm_head", {vocab_}, {.role = CHASSIS_ROLE_HEAD, .tied_to = tied_to});
    if (config_.logit_softcap != 0) logits = b.softcap(logits, config_.logit_softcap);
    b.output("logits", logits);
  }));
}

Block Decoder::layer(Builder& b, const std::string& name, bool sliding) const {
  return b.block(name, [&] {
    Value x = b.input("hidden", {hidden_});
    Value y = attention(b, norm(b, x, "input_layernorm.weight"), sliding);
    if (config_.post_norms) y = norm(b, y, "post_attention_layernorm.weight");
    x = b.add(x, y);
    y = mlp(b, norm(b, x, config_.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"));
    if (config_.post_norms) y = norm(b, y, "post_feedforward_layernorm.weight");
    b.output("hidden", b.add(x, y));
  });
}

Value Decoder::attention(Builder& b, const Value& x, bool sliding) const {
  const LinearOptions bias = {.bias = config_.qkv_bias};
  const Rope& rope = sliding && config_.has_local_rope ? config_.local_rope : config_.rope;
  const chassis::Rope angles = rope_attributes(rope, config_.head_dim, config_.max_position_embeddings);
  const Value positions = b.field("positions");
  const auto projected = [&](const std::string& name, Dim heads) {
    const Value y = b.linear(x, "self_attn." + name + "_proj", {heads, head_dim_}, bias);
    return b.rope(config_.qk_norm ? norm(b, y, "self_attn." + name + "_norm.weight") : y, positions, angles);
  };
  const Value q = projected("q", heads_), k = projected("k", kv_heads_);
  const Value v = b.linear(x, "self_attn.v_proj", {kv_heads_, head_dim_}, bias);
  const Mask mask = {
      .causal = true, .window = sliding ? config_.sliding_window : 0, .document_ids = b.field("document_ids")};
  const double scale =
      config_.query_scale != 0 ? config_.query_scale : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const Value y = b.attention(q, k, v, mask, scale, config_.attention_softcap);
  return b.linear(y, "self_attn.o_proj", {hidden_}, {.bias = config_.output_bias});
}

Value Decoder::mlp(Builder& b, const Value& x) const {
  const LinearOptions bias = {.bias = config_.mlp_bias};
  const Value gate = b.linear(x, "mlp.gate_proj", {ffn_}, bias);
  const Value up = b.linear(x, "mlp.up_proj", {ffn_}, bias);
  return b.linear(b.gated_activation(gate, up, config_.function), "mlp.down_proj", {hidden_}, bias);
}

Value Decoder::norm(Builder& b, const Value& x, const std::string& weight) const {
  return b.rms_norm(x, weight, config_.norm_eps, config_.norm_offset);
}

void Decoder::disk_mapping(DiskMapping& m) const {
  m.skip("*rotary_emb.inv_freq");  // a buffer that old versions of transformers saved
  if (config_.tie_word_embeddings) m.skip("lm_head.weight");
  for (const std::string base : {"embed_tokens.*", "layers.*", "norm.*"})  // names in files saved from the base model
    m.alias(base, "model." + base);
}

}  // namespace decoder
