// The Llama family (LlamaForCausalLM): pre-norm decoder with grouped-query attention, rotary positions and a gated MLP
// (Touvron et al. 2023; Llama Team 2024). B rows, T positions; everything else is a named dim.
#include <cmath>
#include <string>

#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "config.hpp"

namespace {

using namespace chassis;

class Llama final : public Model {
 public:
  static constexpr std::string_view kDoc = "Llama 1 to 3.x and models of their shape (LlamaForCausalLM)";
  using Model::Model;

  void configure(std::string_view config_json) override {
    config_ = llama::parse_config(config_json);
    size_t num_named = 0;  // limited, since a hostile file may have any number of keys
    for (const std::string& key : config_.unknown_keys) {
      host().count(num_named++ < 20 ? "config key " + key : "other config keys", "key '", key,
                   "' is unknown to model 'llama' and ignored");
    }
  }

  void record(Builder& b) override {
    b.init_std = config_.initializer_range;
    hidden_ = b.dim("hidden", config_.hidden_size);
    vocab_ = b.dim("vocab", config_.vocab_size);
    heads_ = b.dim("heads", config_.num_attention_heads);
    kv_heads_ = b.dim("kv_heads", config_.num_key_value_heads);
    head_dim_ = b.dim("head_dim", config_.head_dim);
    ffn_ = b.dim("ffn", config_.intermediate_size);

    b.chain("embed", "model", b.block("embed", [&] {
      const Value ids = b.field("input_ids");
      b.output("hidden", b.embedding(ids, "embed_tokens.weight", vocab_, {hidden_}));
    }));

    b.chain("layers", "model.layers.{i}",
            b.block("layer",
                    [&] {
                      Value x = b.input("hidden", {hidden_});
                      x = b.add(x, attention(b, b.rms_norm(x, "input_layernorm.weight", config_.rms_norm_eps)));
                      x = b.add(x, mlp(b, b.rms_norm(x, "post_attention_layernorm.weight", config_.rms_norm_eps)));
                      b.output("hidden", x);
                    }),
            config_.num_hidden_layers);

    b.chain("head", "", b.block("head", [&] {
      Value x = b.input("hidden", {hidden_});
      x = b.rms_norm(x, "model.norm.weight", config_.rms_norm_eps);
      const std::string tied_to = config_.tie_word_embeddings ? kEmbedding : "";
      const Value logits = b.linear(x, "lm_head", {vocab_}, {.role = CHASSIS_ROLE_HEAD, .tied_to = tied_to});
      b.output("logits", logits);
      b.output("loss", b.cross_entropy(logits, b.field("labels")));
    }));
  }

  std::string config() const override { return llama::write_config(config_); }
  int64_t max_positions() const override { return config_.max_position_embeddings; }

  // Tensors on disk have the names and shapes of the parameters.
  void disk_mapping(DiskMapping& m) const override {
    m.skip("*rotary_emb.inv_freq");  // a buffer that old versions of transformers saved
    if (config_.tie_word_embeddings) m.skip("lm_head.weight");
    for (const std::string base : {"embed_tokens.*", "layers.*", "norm.*"})  // names in files saved from LlamaModel
      m.alias(base, "model." + base);
  }

 private:
  static constexpr const char* kEmbedding = "model.embed_tokens.weight";

  Value attention(Builder& b, const Value& x) const {
    const LinearOptions bias = {.bias = config_.attention_bias};
    const Rope rope = {.inv_freq = llama::inverse_frequencies(config_.rope, config_.head_dim)};
    const Value positions = b.field("positions");
    const Value q = b.rope(b.linear(x, "self_attn.q_proj", {heads_, head_dim_}, bias), positions, rope);
    const Value k = b.rope(b.linear(x, "self_attn.k_proj", {kv_heads_, head_dim_}, bias), positions, rope);
    const Value v = b.linear(x, "self_attn.v_proj", {kv_heads_, head_dim_}, bias);
    const Mask mask = {.causal = true, .document_ids = b.field("document_ids")};
    const Value y = b.attention(q, k, v, mask, 1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
    return b.linear(y, "self_attn.o_proj", {hidden_}, bias);
  }

  Value mlp(Builder& b, const Value& x) const {
    const LinearOptions bias = {.bias = config_.mlp_bias};
    const Value gate = b.linear(x, "mlp.gate_proj", {ffn_}, bias);
    const Value up = b.linear(x, "mlp.up_proj", {ffn_}, bias);
    return b.linear(b.gated_activation(gate, up, config_.function), "mlp.down_proj", {hidden_}, bias);
  }

  llama::Config config_;
  Dim hidden_{}, vocab_{}, heads_{}, kv_heads_{}, head_dim_{}, ffn_{};
};

}  // namespace

CHASSIS_PLUGIN(
    "architecture=LlamaForCausalLM\n"
    "architecture=LlamaModel\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Llama)
