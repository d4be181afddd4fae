// Mixtral (Jiang et al. 2024): Mistral's shape with experts in every layer.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {

const Family& mixtral() {
  static const Family family = {
      .name = "mixtral",
      .model_type = "mixtral",
      .architectures = {"MixtralForCausalLM", "MixtralModel", "MixtralForSequenceClassification"},
      .expert_names = {.router = "block_sparse_moe.gate",
                       .experts = "block_sparse_moe.experts",
                       .gate = "w1",
                       .up = "w3",
                       .down = "w2",
                       .stacked = "block_sparse_moe.switch_mlp"},
      .writes_head_dim = false,
      .defaults = {.intermediate_size = 14336,
                   .num_key_value_heads = 8,
                   .norm_eps = 1e-5,
                   .max_position_embeddings = 4096 * 32},
      .read =
          [](Reader& reader, Config& config) {
            reader.require_neutral("attention_bias", false);
            read_sliding_layers(reader, config, 4096, [&](int64_t) { return config.sliding_window != 0; });
            read_experts(reader, config, reader.same_size("num_local_experts", "num_experts", 8, kMaxExperts),
                         reader.size("num_experts_per_tok", 2), config.intermediate_size);
            read_balance(reader, config);
            config.experts.normalize = true;
          },
      .write =
          [](const Config& config, Json& out) {
            out["sliding_window"] = config.sliding_window != 0 ? Json(config.sliding_window) : Json(nullptr);
            write_experts(config, "num_local_experts", out);
          }};
  return family;
}

class Mixtral final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Mixtral 8x7B, 8x22B and models of their shape (MixtralForCausalLM)";
  explicit Mixtral(const chassis::Host& host) : Decoder(host, mixtral()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=MixtralForCausalLM\n"
    "architecture=MixtralModel\n"
    "architecture=MixtralForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Mixtral)
