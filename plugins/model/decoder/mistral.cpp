// Mistral (Jiang et al. 2023): Llama's shape, with a sliding window in every layer if sliding_window is set.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {

const Family& mistral() {
  static const Family family = {
      .name = "mistral",
      .model_type = "mistral",
      .architectures = {"MistralForCausalLM", "MistralModel", "MistralForSequenceClassification"},
      .defaults = {.intermediate_size = 14336, .num_key_value_heads = 8, .max_position_embeddings = 4096 * 32},
      .read =
          [](Reader& reader, Config& config) {
            reader.require_neutral("attention_bias", false);
            read_sliding_layers(reader, config, 4096, [&](int64_t) { return config.sliding_window != 0; });
          },
      .write =
          [](const Config& config, Json& out) {
            out["sliding_window"] = config.sliding_window != 0 ? Json(config.sliding_window) : Json(nullptr);
          }};
  return family;
}

class Mistral final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Mistral 7B and models of its shape (MistralForCausalLM)";
  explicit Mistral(const chassis::Host& host) : Decoder(host, mistral()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=MistralForCausalLM\n"
    "architecture=MistralModel\n"
    "architecture=MistralForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Mistral)
