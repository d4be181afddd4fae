// Qwen3-MoE (Yang et al. 2025): Qwen3's attention, with experts in place of the MLP of most layers.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "qwen.hpp"

namespace decoder {

const Family& qwen3_moe() {
  static const Family family = {
      .name = "qwen3_moe",
      .model_type = "qwen3_moe",
      .architectures = {"Qwen3MoeForCausalLM", "Qwen3MoeModel", "Qwen3MoeForSequenceClassification"},
      .defaults = {.vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 6144,
                   .num_hidden_layers = 24,
                   .num_key_value_heads = 4,
                   .max_position_embeddings = 32768,
                   .qk_norm = true},
      .read =
          [](Reader& reader, Config& config) {
            config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
            const bool slides = reader.boolean("use_sliding_window", false);
            reader.ignore({"max_window_layers"});
            if (slides)
              read_sliding_layers(reader, config, 4096, [](int64_t) { return true; });
            else
              reader.ignore({"sliding_window"});
            read_qwen_experts(reader, config, {.num_experts = 128, .num_chosen = 8, .width = 768});
          },
      .write =
          [](const Config& config, Json& out) {
            out["attention_bias"] = config.qkv_bias;
            write_qwen_windows(config, out);
            write_qwen_experts(config, out);
          }};
  return family;
}

class Qwen3Moe final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Qwen3 with experts (Qwen3MoeForCausalLM)";
  explicit Qwen3Moe(const chassis::Host& host) : Decoder(host, qwen3_moe()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Qwen3MoeForCausalLM\n"
    "architecture=Qwen3MoeModel\n"
    "architecture=Qwen3MoeForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Qwen3Moe)
