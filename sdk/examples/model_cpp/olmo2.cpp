// OLMo 2 (Team OLMo 2025): as Llama, but norms come after attention and MLP, not before them, and q and k are
// normalized over all heads at once.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "chassis/config_keys.hpp"
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;
using Json = nlohmann::ordered_json;
using Keys = ConfigKeys;

class Olmo2 final : public Model {
 public:
  static constexpr std::string_view kId = "model_cpp";
  static constexpr std::string_view kDoc = "OLMo 2 (Olmo2ForCausalLM)";
  using Model::Model;

  void configure(std::string_view config_json) override {
    source_ = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
    if (!source_.is_object()) fail_invalid("config.json is not a JSON object");
    Keys keys(source_, kId);
    keys.require("architectures", {"Olmo2ForCausalLM"});
    keys.require("model_type", "olmo2");
    keys.require("hidden_act", "silu");
    keys.require("attention_bias", false);
    keys.require("attention_dropout", 0.0);
    keys.require("quantization_config", nullptr);
    // The fallbacks are those of transformers' Olmo2Config.
    vocab_size_ = keys.positive<int64_t>("vocab_size", 50304);
    hidden_size_ = keys.positive<int64_t>("hidden_size", 4096);
    ffn_size_ = keys.positive<int64_t>("intermediate_size", 11008);
    num_layers_ = keys.positive<int64_t>("num_hidden_layers", 32);
    num_heads_ = keys.positive<int64_t>("num_attention_heads", 32);
    num_kv_heads_ = keys.positive<int64_t>("num_key_value_heads", num_heads_);
    max_positions_ = keys.positive<int64_t>("max_position_embeddings", 2048);
    head_size_ = keys.positive<int64_t>("head_dim", hidden_size_ / num_heads_);
    norm_eps_ = keys.positive("rms_norm_eps", 1e-5);
    init_std_ = keys.positive("initializer_range", 0.02);
    tied_ = keys.boolean("tie_word_embeddings", false);
    if (num_heads_ % num_kv_heads_ != 0)
      fail_config({"num_attention_heads", "num_key_value_heads"}, "num_attention_heads ", num_heads_,
                  " is not a multiple of num_key_value_heads ", num_kv_heads_);
    if (head_size_ < 2 || head_size_ % 2 != 0)
      fail_config({"head_dim"}, "head_dim ", head_size_, " is not a positive even number");
    read_rope(keys);
    keys.for_each_unknown([&](const std::string& key) {
      host().count("config key " + key, "key '", key, "' is unknown to model 'model_cpp' and ignored");
    });
  }

  void record(Builder& b) override {
    b.init_std = init_std_;
    const Dim vocab = b.dim("vocab", vocab_size_);
    hidden_ = b.dim("hidden", hidden_size_), ffn_ = b.dim("ffn", ffn_size_);
    heads_ = b.dim("heads", num_heads_), kv_heads_ = b.dim("kv_heads", num_kv_heads_);
    head_dim_ = b.dim("head_dim", head_size_);
    all_heads_ = b.dim("all_heads", num_heads_ * head_size_);
    all_kv_heads_ = b.dim("all_kv_heads", num_kv_heads_ * head_size_);

    b.chain("embed", "model", b.block("embed", [&] {
      b.output("hidden", b.embedding(b.field("input_ids"), "embed_tokens.weight", vocab, {hidden_}));
    }));
    b.chain("layers", "model.layers.{i}",
            b.block("layer",
                    [&] {
                      Value x = b.input("hidden", {hidden_});
                      x = b.add(x, b.rms_norm(attention(b, x), "post_attention_layernorm.weight", norm_eps_));
                      x = b.add(x, b.rms_norm(mlp(b, x), "post_feedforward_layernorm.weight", norm_eps_));
                      b.output("hidden", x);
                    }),
            num_layers_);
    b.chain("head", "", b.block("head", [&] {
      const Value x = b.rms_norm(b.input("hidden", {hidden_}), "model.norm.weight", norm_eps_);
      b.output("hidden", x);
      const std::string tied_to = tied_ ? "model.embed_tokens.weight" : "";
      b.output("logits", b.linear(x, "lm_head", {vocab}, {.role = CHASSIS_ROLE_HEAD, .tied_to = tied_to}));
    }));
  }

  void disk_mapping(DiskMapping& m) const override {
    if (tied_) m.skip("lm_head.weight");
  }

  std::string config() const override {
    Json out = source_;  // other keys, such as eos_token_id, are passed on
    out["architectures"] = {"Olmo2ForCausalLM"};
    out["model_type"] = "olmo2";
    const auto sizes = {std::pair{"vocab_size", vocab_size_},       {"hidden_size", hidden_size_},
                        {"intermediate_size", ffn_size_},           {"num_hidden_layers", num_layers_},
                        {"num_attention_heads", num_heads_},        {"num_key_value_heads", num_kv_heads_},
                        {"max_position_embeddings", max_positions_}};
    for (const auto& [key, size] : sizes) out[key] = size;
    out["rms_norm_eps"] = norm_eps_, out["initializer_range"] = init_std_, out["tie_word_embeddings"] = tied_;
    out["rope_theta"] = theta_;  // transformers 4; 5 reads the table
    out["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", theta_}};
    return out.dump(2) + "\n";
  }
  int64_t max_positions() const override { return max_positions_; }

 private:
  void read_rope(Keys& keys) {
    theta_ = keys.positive("rope_theta", 10000.0);
    keys.require("rope_scaling", nullptr);
    const Json* rope = keys.find("rope_parameters");
    if (rope == nullptr) return;
    if (!rope->is_object()) fail_config({"rope_parameters"}, "rope_parameters is ", rope->dump(), ", expected a table");
    Keys inner(*rope, kId, "rope_parameters");
    inner.require("rope_type", "default");
    theta_ = inner.positive("rope_theta", theta_);
  }

  Value attention(Builder& b, const Value& x) const {
    Rope rope;
    for (int64_t i = 0; i < head_size_; i += 2) {  // rounded to float32 where transformers rounds
      const float exponent = static_cast<float>(i) / static_cast<float>(head_size_);
      rope.inv_freq.push_back(1.0f / static_cast<float>(std::pow(theta_, exponent)));
    }
    const auto rotated = [&](const std::string& name, Dim all, Dim heads) {
      const Value y = b.linear(x, "self_attn." + name + "_proj", {all});
      const Value normed = b.rms_norm(y, "self_attn." + name + "_norm.weight", norm_eps_);
      return b.rope(b.reshape(normed, {kBatch, kTime, heads, head_dim_}), b.field("positions"), rope);
    };
    const Value q = rotated("q", all_heads_, heads_), k = rotated("k", all_kv_heads_, kv_heads_);
    const Value v = b.linear(x, "self_attn.v_proj", {kv_heads_, head_dim_});
    const Value y = b.attention(q, k, v, {.causal = true, .document_ids = b.field("document_ids")},
                                1 / std::sqrt(static_cast<double>(head_size_)));
    return b.linear(y, "self_attn.o_proj", {hidden_});
  }

  Value mlp(Builder& b, const Value& x) const {
    const Value gate = b.linear(x, "mlp.gate_proj", {ffn_}), up = b.linear(x, "mlp.up_proj", {ffn_});
    return b.linear(b.gated_activation(gate, up, "silu"), "mlp.down_proj", {hidden_});
  }

  Json source_ = nullptr;
  int64_t vocab_size_ = 0, hidden_size_ = 0, ffn_size_ = 0, num_layers_ = 0, num_heads_ = 0, num_kv_heads_ = 0;
  int64_t head_size_ = 0, max_positions_ = 0;
  double norm_eps_ = 0, init_std_ = 0, theta_ = 0;
  bool tied_ = false;
  Dim hidden_{}, ffn_{}, heads_{}, kv_heads_{}, head_dim_{}, all_heads_{}, all_kv_heads_{};
};

}  // namespace

CHASSIS_PLUGIN(
    "architecture=Olmo2ForCausalLM\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Olmo2)
