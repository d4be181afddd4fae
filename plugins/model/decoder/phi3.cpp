// Phi-3, Phi-3.5 mini and Phi-4 mini (Abdin et al. 2024): Llama's shape, whose files join q, k and v, and gate and up.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {

const Family& phi3() {
  static const Family family = {
      .name = "phi3",
      .model_type = "phi3",
      .architectures = {"Phi3ForCausalLM", "Phi3Model", "Phi3ForSequenceClassification"},
      .ropes = {.types = {"default", "longrope"}, .partial = true},
      .writes_head_dim = false,
      .defaults = {.vocab_size = 32064,
                   .hidden_size = 3072,
                   .intermediate_size = 8192,
                   .norm_eps = 1e-5,
                   .max_position_embeddings = 4096},
      .read =
          [](Reader& reader, Config& config) {
            for (const char* key : {"embd_pdrop", "resid_pdrop"}) reader.require_neutral(key, 0.0);
            for (const char* key : {"attention_bias", "mlp_bias", "lm_head_bias"}) reader.require_neutral(key, false);
            for (const char* key : {"full_attn_mod", "interpolate_factor"}) reader.require_neutral(key, 1);
            reader.ignore({"original_max_position_embeddings"});
            read_sliding_layers(reader, config, 0, [&](int64_t) { return config.sliding_window != 0; });
          },
      .write =
          [](const Config& config, Json& out) {
            out["sliding_window"] = config.sliding_window != 0 ? Json(config.sliding_window) : Json();
          }};
  return family;
}

class Phi3 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Phi-3 mini and medium, Phi-3.5 mini, Phi-4 mini (Phi3ForCausalLM)";
  explicit Phi3(const chassis::Host& host) : Decoder(host, phi3()) {}

  void disk_mapping(chassis::DiskMapping& m) const override {
    Decoder::disk_mapping(m);
    const auto joined = [&m](const std::string& name, const std::vector<std::string>& parts) {
      const std::string layer = "model.layers.{i}.";
      std::vector<chassis::DiskPart> parameters;
      for (const std::string& part : parts) parameters.push_back({layer + part + ".weight"});
      m.tensor(layer + name + ".weight", parameters);
    };
    joined("self_attn.qkv_proj", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    joined("mlp.gate_up_proj", {"mlp.gate_proj", "mlp.up_proj"});
  }
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Phi3ForCausalLM\n"
    "architecture=Phi3Model\n"
    "architecture=Phi3ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Phi3)
