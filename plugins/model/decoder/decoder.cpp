// Recording: B rows, T positions; everything else is a named dim.
#include "decoder.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace decoder {

using namespace chassis;

namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

void Decoder::configure(std::string_view config_json) {
  config_ = parse_config(family_, config_json);
  for (const auto& [key, why] : config_.losses_that_are_off)
    host().count("config key " + key, "'", key, "' asks for an auxiliary loss of experts, which is off: ", why,
                 "; model.router_aux_weight sets its weight");
  size_t num_named = 0;  // limited, since a hostile file may have any number of keys
  for (const std::string& key : config_.unknown_keys) {
    host().count(num_named++ < 20 ? "config key " + key : "other config keys", "key '", key, "' is unknown to model '",
                 family_.name, "' and ignored");
  }
  if (config_.has_towers)
    host().count("models of text and images", "model '", family_.name, "' trains the text model of a ",
                 family_.outer_architecture, "; its vision tower is not read, and exports are text models (",
                 family_.architectures.front(), ")");
}

void Decoder::record(Builder& b) {
  b.init_std = config_.initializer_range;
  hidden_ = b.dim("hidden", config_.hidden_size);
  vocab_ = b.dim("vocab", config_.vocab_size);
  heads_ = b.dim("heads", config_.num_attention_heads);
  if (const LatentAttention& latent = config_.latent; latent.kv_rank != 0) {
    if (latent.q_rank != 0) latent_.q = b.dim("q_lora_rank", latent.q_rank);
    latent_.kv = b.dim("kv_lora_rank", latent.kv_rank);
    latent_.kv_with_rotary = b.dim("kv_lora_rank_with_rope", latent.kv_rank + latent.rotary_dim);
    latent_.plain = b.dim("qk_nope_head_dim", latent.plain_dim);
    latent_.rotary = b.dim("qk_rope_head_dim", latent.rotary_dim);
    latent_.value = b.dim("v_head_dim", latent.value_dim);
    latent_.query = b.dim("qk_head_dim", latent.plain_dim + latent.rotary_dim);
    latent_.plain_and_value = b.dim("kv_head_dim", latent.plain_dim + latent.value_dim);
    latent_.one = b.dim("shared_key", 1);
  } else {
    kv_heads_ = b.dim("kv_heads", config_.num_key_value_heads);
    head_dim_ = b.dim("head_dim", config_.head_dim);
    if (config_.qk_norm_whole) {
      all_heads_ = b.dim("all_heads", config_.num_attention_heads * config_.head_dim);
      all_kv_heads_ = b.dim("all_kv_heads", config_.num_key_value_heads * config_.head_dim);
    }
  }
  const Experts& experts = config_.experts;
  if (experts.num_experts == 0 || std::ranges::count(experts.is_dense, true) > 0)
    ffn_ = b.dim("ffn", config_.dense_width != 0 ? config_.dense_width : config_.intermediate_size);
  if (experts.num_experts != 0) {
    num_experts_ = b.dim("experts", experts.num_experts);
    chosen_ = b.dim("chosen_experts", experts.num_chosen);
    expert_ffn_ = b.dim("expert_ffn", experts.width);
    if (experts.shared_width != 0) shared_ffn_ = b.dim("shared_ffn", experts.shared_width);
  }

  b.chain("embed", "model", b.block("embed", [&] {
    Value x = b.embedding(b.field("input_ids"), "embed_tokens.weight", vocab_, {hidden_});
    if (config_.scale_embedding) x = b.scale(x, std::sqrt(static_cast<double>(config_.hidden_size)));
    b.output("hidden", x);
  }));

  std::vector<Block> layers;
  std::map<LayerKind, Block> kinds;
  for (size_t i = 0; i < static_cast<size_t>(config_.num_hidden_layers); ++i) {
    const LayerKind kind = kind_of(i);
    if (!kinds.contains(kind)) kinds.emplace(kind, layer(b, kind));
    layers.push_back(kinds.at(kind));
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

Decoder::LayerKind Decoder::kind_of(size_t layer) const {
  const auto has = [&](const std::vector<bool>& layers) { return !layers.empty() && layers[layer]; };
  return {.slides = has(config_.is_sliding),
          .has_experts = config_.experts.are_in(layer),
          .rotates = !has(config_.has_no_rope)};
}

bool Decoder::has_expert_layers() const {
  for (size_t i = 0; i < static_cast<size_t>(config_.num_hidden_layers); ++i)
    if (config_.experts.are_in(i)) return true;
  return false;
}

Block Decoder::layer(Builder& b, LayerKind kind) const {
  const std::string name = std::string(kind.slides ? "sliding_" : "") + (kind.rotates ? "" : "unrotated_") +
                           (kind.has_experts ? "expert_layer" : "layer");
  return b.block(name, [&] {
    Value x = b.input("hidden", {hidden_});
    const Value normed = norm(b, x, "input_layernorm.weight");
    Value y = config_.latent.kv_rank != 0 ? latent_attention(b, normed) : attention(b, normed, kind);
    if (config_.post_norms) y = norm(b, y, "post_attention_layernorm.weight");
    x = b.add(x, y);
    y = norm(b, x, config_.post_norms ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight");
    y = kind.has_experts ? experts(b, y) : mlp(b, y, std::string(family_.mlp), ffn_);
    if (config_.post_norms) y = norm(b, y, "post_feedforward_layernorm.weight");
    b.output("hidden", b.add(x, y));
  });
}

Value Decoder::projected(Builder& b, const Value& x, const std::string& name, Dim heads, Dim width) const {
  const LinearOptions bias = {.bias = config_.qkv_bias};
  const std::string linear = "self_attn." + name + "_proj", weight = "self_attn." + name + "_norm.weight";
  const auto clipped = [&](const Value& y) { return config_.qkv_clip != 0 ? b.clip(y, config_.qkv_clip) : y; };
  if (config_.qk_norm_whole && name != "v")
    return b.reshape(clipped(norm(b, b.linear(x, linear, {width}, bias), weight)), {kBatch, kTime, heads, head_dim_});
  const Value y = b.linear(x, linear, {heads, head_dim_}, bias);
  return clipped(config_.qk_norm && name != "v" ? norm(b, y, weight) : y);
}

Value Decoder::attention(Builder& b, const Value& x, LayerKind kind) const {
  const Rope& rope = kind.slides && config_.has_local_rope ? config_.local_rope : config_.rope;
  chassis::Rope angles = rope_attributes(rope, config_.head_dim, config_.max_position_embeddings);
  angles.interleaved = config_.rope_interleaved;
  const Value positions = b.field("positions");
  const auto rotated = [&](const Value& y) {
    if (!kind.rotates) return y;
    const Value turned = b.rope(y, positions, angles);
    return config_.plain_qk_norm ? b.plain_rms_norm(turned, config_.norm_eps) : turned;
  };
  Value q = rotated(projected(b, x, "q", heads_, all_heads_));
  if (!kind.rotates && config_.floor_scale != 0)
    q = b.position_scale(q, positions, static_cast<double>(config_.floor_scale), config_.attn_scale);
  const Value k = rotated(projected(b, x, "k", kv_heads_, all_kv_heads_));
  const Value v = projected(b, x, "v", kv_heads_, {});
  const Mask mask = {.causal = true,
                     .window = kind.slides ? config_.sliding_window : 0,
                     .chunk = kind.slides ? config_.attention_chunk : 0,
                     .document_ids = b.field("document_ids")};
  const double scale =
      config_.query_scale != 0 ? config_.query_scale : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const Value y = b.attention(q, k, v, mask, scale, config_.attention_softcap);
  return b.linear(y, "self_attn.o_proj", {hidden_}, {.bias = config_.output_bias});
}

Value Decoder::latent_attention(Builder& b, const Value& x) const {
  constexpr double kLatentEps = 1e-6;  // whatever rms_norm_eps is
  const LatentAttention& latent = config_.latent;
  const LinearOptions bias = {.bias = config_.qkv_bias};
  chassis::Rope angles = rope_attributes(config_.rope, latent.rotary_dim, config_.max_position_embeddings);
  angles.interleaved = true;
  const Value positions = b.field("positions");

  const Dims per_head = {heads_, latent_.query};
  const Value q = latent.q_rank == 0 ? b.linear(x, "self_attn.q_proj", per_head)
                                     : b.linear(b.rms_norm(b.linear(x, "self_attn.q_a_proj", {latent_.q}, bias),
                                                           "self_attn.q_a_layernorm.weight", kLatentEps),
                                                "self_attn.q_b_proj", per_head);
  const Value rotated_q = b.rope(b.slice(q, latent.plain_dim, latent_.rotary), positions, angles);
  const Value query = b.concat(b.slice(q, 0, latent_.plain), rotated_q, latent_.query);

  const Value kv = b.linear(x, "self_attn.kv_a_proj_with_mqa", {latent_.kv_with_rotary}, bias);
  const Value shared_key =
      b.reshape(b.slice(kv, latent.kv_rank, latent_.rotary), {kBatch, kTime, latent_.one, latent_.rotary});
  const Value normed = b.rms_norm(b.slice(kv, 0, latent_.kv), "self_attn.kv_a_layernorm.weight", kLatentEps);
  const Value expanded = b.linear(normed, "self_attn.kv_b_proj", {heads_, latent_.plain_and_value});
  const Value key = b.concat(b.slice(expanded, 0, latent_.plain), b.rope(shared_key, positions, angles), latent_.query);
  const Value value = b.slice(expanded, latent.plain_dim, latent_.value);

  const Mask mask = {.causal = true, .document_ids = b.field("document_ids")};
  const double scale =
      yarn_score_factor(config_.rope) / std::sqrt(static_cast<double>(latent.plain_dim + latent.rotary_dim));
  return b.linear(b.attention(query, key, value, mask, scale), "self_attn.o_proj", {hidden_},
                  {.bias = config_.output_bias});
}

Value Decoder::mlp(Builder& b, const Value& x, const std::string& name, Dim width) const {
  const LinearOptions bias = {.bias = config_.mlp_bias};
  const Value gate = b.linear(x, name + ".gate_proj", {width}, bias);
  const Value up = b.linear(x, name + ".up_proj", {width}, bias);
  return b.linear(b.gated_activation(gate, up, config_.function), name + ".down_proj", {hidden_}, bias);
}

Value Decoder::experts(Builder& b, const Value& x) const {
  const Experts& experts = config_.experts;
  const ExpertNames& names = family_.expert_names;
  const std::string mlp_name(family_.mlp);
  const Value logits = b.router(x, mlp_name + (names.is_joined ? ".router.weight" : ".gate.weight"), num_experts_);
  const Value chosen =
      b.top_experts(logits, chosen_, b.field("document_ids"), experts.groups, experts.top_groups, experts.balance);
  const Value weights = b.expert_weights(logits, chosen, experts.score, experts.normalize, experts.factor);
  const Value rows = experts.scales_input ? b.dispatch(x, chosen, weights) : b.dispatch(x, chosen);
  const auto product = [&](const Value& in, const std::string& name, Dim out) {
    return b.grouped_linear(in, chosen, mlp_name + ".experts." + name, num_experts_, {out});
  };
  const Value gate = product(rows, "gate_proj", expert_ffn_), up = product(rows, "up_proj", expert_ffn_);
  const Value down = product(b.gated_activation(gate, up, config_.function), "down_proj", hidden_);
  const Value y = experts.scales_input ? b.combine(down, chosen) : b.combine(down, chosen, weights);
  if (experts.shared_width == 0) return y;
  Value shared = mlp(b, x, std::string(names.shared), shared_ffn_);
  if (experts.shared_gate)
    shared = b.gate_tokens(shared, b.router(x, "mlp.shared_expert_gate.weight", b.dim("shared_gate", 1)));
  return b.add(y, shared);
}

Value Decoder::norm(Builder& b, const Value& x, const std::string& weight) const {
  return b.rms_norm(x, weight, config_.norm_eps, config_.norm_offset);
}

void Decoder::disk_mapping(DiskMapping& m) const {
  m.skip("*rotary_emb.inv_freq");  // a buffer that old versions of transformers saved
  if (config_.tie_word_embeddings) m.skip("lm_head.weight");
  if (has_expert_layers()) expert_mapping(m);
  for (const std::string base : {"embed_tokens.*", "layers.*", "norm.*"})  // names in files saved from the base model
    m.alias(base, "model." + base);
  if (family_.outer_model_type.empty()) return;
  for (const std::string name : {"model.*", "lm_head.*"}) m.alias("language_model." + name, name);
  if (config_.has_towers)
    for (const char* tower : {"vision_model.*", "multi_modal_projector.*"}) m.skip(tower);
}

// Files hold the experts of a layer in one of three forms, the first of which is that of published models.
void Decoder::expert_mapping(DiskMapping& m) const {
  const ExpertNames& names = family_.expert_names;
  const std::string layer = "model.layers.{i}.";
  const std::string experts = layer + std::string(family_.mlp) + ".experts.";  // in the program
  const std::pair<std::string, std::string_view> linears[] = {
      {"gate_proj", names.gate}, {"up_proj", names.up}, {"down_proj", names.down}};

  // Those of transformers 5 in memory, and of its files with save_original_format=False.
  const auto joined = [&] {
    const std::vector<uint32_t> dims = names.is_joined ? std::vector<uint32_t>{0, 2, 1} : std::vector<uint32_t>{};
    m.tensor(experts + "gate_up_proj", {{experts + "gate_proj.weight"}, {experts + "up_proj.weight"}}, 1, dims);
    m.tensor(experts + "down_proj", {{experts + "down_proj.weight"}}, 0, dims);
  };
  const auto separate = [&] {
    for (const auto& [ours, theirs] : linears)
      for (int64_t e = 0; e < config_.experts.num_experts; ++e)
        m.tensor(layer + std::string(names.experts) + "." + std::to_string(e) + "." + std::string(theirs) + ".weight",
                 {{experts + ours + ".weight", {e, 0, 0}, {1, 0, 0}}}, 0, {1, 2});
  };
  if (const std::string router(names.router); router != "mlp.gate") {
    m.tensor(layer + router + ".weight", {{layer + "mlp.gate.weight"}});
    m.tensor(layer + "mlp.gate.weight", {{layer + "mlp.gate.weight"}});  // beside joined experts
  }
  if (names.is_joined) joined();
  separate();
  if (!names.is_joined) joined();
  // Those of mlx. Nothing would tell whether square matrices are transposed.
  if (config_.experts.width != config_.hidden_size)
    for (const auto& [ours, theirs] : linears)
      m.tensor(layer + std::string(names.stacked) + "." + ours + ".weight", {{experts + ours + ".weight"}});
}

}  // namespace decoder
