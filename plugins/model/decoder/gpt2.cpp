// GPT-2 (Radford et al. 2019): learned positions, layer_norm, biases everywhere, and weights that files hold as [in,
// out] (transformers' Conv1D), with q, k and v in one tensor.
#include <cmath>

#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "decoder.hpp"

namespace {

using namespace chassis;
using decoder::Json;
using decoder::Reader;

class Gpt2 final : public Model {
 public:
  static constexpr std::string_view kDoc = "GPT-2 (GPT2LMHeadModel)";
  using Model::Model;

  void configure(std::string_view config_json) override {
    source_ = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
    if (!source_.is_object()) fail_invalid("config.json is not a JSON object");
    Reader reader(source_, "gpt2");
    if (const std::string type = reader.text("model_type", "gpt2"); type != "gpt2")
      fail_config({"model_type"}, "model_type '", type, "' is not supported by model 'gpt2' (supported: gpt2)");
    if (decoder::classifies(read_architecture(reader))) num_labels_ = decoder::read_num_labels(reader);
    reader.require_neutral("quantization_config", nullptr);
    reader.require_neutral("scale_attn_by_inverse_layer_idx", false);
    reader.require_neutral("reorder_and_upcast_attn", false);
    reader.require_neutral("add_cross_attention", false);
    reader.ignore({"n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
                   "summary_first_dropout", "gradient_checkpointing"});

    vocab_size_ = reader.size("vocab_size", 50257);
    hidden_size_ = size(reader, "n_embd", "hidden_size", 768);
    num_layers_ = size(reader, "n_layer", "num_hidden_layers", 12, 1 << 16);
    num_heads_ = size(reader, "n_head", "num_attention_heads", 12);
    num_positions_ = size(reader, "n_positions", "max_position_embeddings", 1024);
    ffn_size_ = reader.size("n_inner", 4 * hidden_size_);
    if (hidden_size_ % num_heads_ != 0)
      fail_config({"n_embd", "n_head"}, "n_embd ", hidden_size_, " is not a multiple of n_head ", num_heads_);
    function_ = decoder::read_function(reader, "activation_function", "gelu_tanh");
    eps_ = reader.positive("layer_norm_epsilon", 1e-5);
    initializer_range_ = reader.positive("initializer_range", 0.02);
    scales_scores_ = reader.boolean("scale_attn_weights", true);
    tied_ = reader.boolean("tie_word_embeddings", true);
    std::string first_dropout;  // all are counted under its key, and shown once
    for (const std::string key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
      const double rate = reader.number(key, 0);
      if (rate == 0) continue;
      if (first_dropout.empty()) first_dropout = key;
      host().count("config key " + first_dropout, "key '", key, "' is ", rate,
                   ", but models are trained without dropout: it has no effect here");
    }
    size_t num_named = 0;
    for (const std::string& key : reader.unknown_keys())
      host().count(num_named++ < 20 ? "config key " + key : "other config keys", "key '", key,
                   "' is unknown to model 'gpt2' and ignored");
  }

  void record(Builder& b) override {
    b.init_std = initializer_range_;
    hidden_ = b.dim("hidden", hidden_size_);
    heads_ = b.dim("heads", num_heads_);
    head_dim_ = b.dim("head_dim", hidden_size_ / num_heads_);
    ffn_ = b.dim("ffn", ffn_size_);
    const Dim vocab = b.dim("vocab", vocab_size_), positions = b.dim("positions", num_positions_);

    b.chain("embed", "transformer", b.block("embed", [&] {
      const Value tokens = b.embedding(b.field("input_ids"), "wte.weight", vocab, {hidden_});
      b.output("hidden", b.add(tokens, b.embedding(b.field("positions"), "wpe.weight", positions, {hidden_})));
    }));
    b.chain("layers", "transformer.h.{i}",
            b.block("layer",
                    [&] {
                      Value x = b.input("hidden", {hidden_});
                      x = b.add(x, attention(b, b.layer_norm(x, "ln_1", eps_)));
                      const Value y = b.linear(b.layer_norm(x, "ln_2", eps_), "mlp.c_fc", {ffn_}, {.bias = true});
                      x = b.add(x, b.linear(b.activation(y, function_), "mlp.c_proj", {hidden_}, {.bias = true}));
                      b.output("hidden", x);
                    }),
            num_layers_);
    b.chain("head", "", b.block("head", [&] {
      const Value x = b.layer_norm(b.input("hidden", {hidden_}), "transformer.ln_f", eps_);
      if (num_labels_ != 0) {
        b.output("scores", b.score(x, "score.weight", b.dim("labels", num_labels_)));
        return;
      }
      b.output("hidden", x);
      const std::string tied_to = tied_ ? "transformer.wte.weight" : "";
      b.output("logits", b.linear(x, "lm_head", {vocab}, {.role = CHASSIS_ROLE_HEAD, .tied_to = tied_to}));
    }));
  }

  void disk_mapping(DiskMapping& m) const override {
    const std::string layer = "transformer.h.{i}.";
    const auto parts = [&](const std::string& suffix) -> std::vector<DiskPart> {
      return {{layer + "attn.q." + suffix}, {layer + "attn.k." + suffix}, {layer + "attn.v." + suffix}};
    };
    m.tensor(layer + "attn.c_attn.weight", parts("weight"), 0, {1, 0});
    m.tensor(layer + "attn.c_attn.bias", parts("bias"));
    for (const std::string name : {"attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"})
      m.permuted(layer + name, layer + name);
    m.skip("*.attn.bias");  // masks that old versions of transformers saved
    m.skip("*.attn.masked_bias");
    if (tied_) m.skip("lm_head.weight");
    for (const std::string base : {"wte.*", "wpe.*", "h.*", "ln_f.*"})  // names in files saved from GPT2Model
      m.alias(base, "transformer." + base);
  }

  std::string config() const override {
    Json out = source_;
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"})
      out.erase(key);
    out["architectures"] = {num_labels_ != 0 ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"};
    out["model_type"] = "gpt2";
    out["vocab_size"] = vocab_size_;
    out["n_embd"] = hidden_size_;
    out["n_layer"] = num_layers_;
    out["n_head"] = num_heads_;
    out["n_positions"] = num_positions_;
    if (!out.contains("n_inner")) out["n_inner"] = nullptr;
    if (!out.contains("activation_function")) out["activation_function"] = "gelu_new";
    out["layer_norm_epsilon"] = eps_;
    out["initializer_range"] = initializer_range_;
    out["scale_attn_weights"] = scales_scores_;
    out["tie_word_embeddings"] = tied_;
    Json dtype = "float32";
    for (const char* key : {"torch_dtype", "dtype"})
      if (out.contains(key) && out[key].is_string()) dtype = out[key];
    out["torch_dtype"] = out["dtype"] = dtype;
    return out.dump(2) + "\n";
  }
  int64_t max_positions() const override { return num_positions_; }

 private:
  static std::string_view read_architecture(Reader& reader) {
    constexpr std::string_view kOurs[] = {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"};
    const Json* names = reader.find("architectures");
    if (names == nullptr) return kOurs[0];
    if (names->is_array())
      for (const Json& name : *names)
        for (const std::string_view ours : kOurs)
          if (name.is_string() && name.get_ref<const std::string&>() == ours) return ours;
    fail_config({"architectures"}, "architectures ", names->dump(),
                " are not supported by model 'gpt2' (supported: ", decoder::list_of(kOurs), ")");
  }

  // transformers reads both names; if they disagree, it takes the last.
  static int64_t size(Reader& reader, std::string_view key, std::string_view other, int64_t fallback,
                      int64_t max = int64_t{1} << 32) {
    return reader.same_size(key, other, fallback, max);
  }

  Value attention(Builder& b, const Value& x) const {
    const auto projected = [&](const std::string& name) {
      return b.linear(x, "attn." + name, {heads_, head_dim_}, {.bias = true});
    };
    const Value q = projected("q"), k = projected("k"), v = projected("v");
    const Mask mask = {.causal = true, .document_ids = b.field("document_ids")};
    const double head_dim = static_cast<double>(hidden_size_ / num_heads_);
    const Value y = b.attention(q, k, v, mask, scales_scores_ ? 1 / std::sqrt(head_dim) : 1.0);
    return b.linear(y, "attn.c_proj", {hidden_}, {.bias = true});
  }

  Json source_ = nullptr;
  int64_t vocab_size_ = 0, hidden_size_ = 0, num_layers_ = 0, num_heads_ = 0, num_positions_ = 0, ffn_size_ = 0;
  int64_t num_labels_ = 0;  // of a sequence-classification head; 0: a head to the vocabulary
  std::string function_;
  double eps_ = 0, initializer_range_ = 0;
  bool scales_scores_ = true, tied_ = true;
  Dim hidden_{}, heads_{}, head_dim_{}, ffn_{};
};

}  // namespace

CHASSIS_PLUGIN(
    "architecture=GPT2LMHeadModel\n"
    "architecture=GPT2Model\n"
    "architecture=GPT2ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    Gpt2)
