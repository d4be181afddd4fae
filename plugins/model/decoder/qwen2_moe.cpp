// Qwen2-MoE (Yang et al. 2024): Qwen2's attention, and experts with a gated shared expert.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "qwen.hpp"

namespace decoder {

const Family& qwen2_moe() {
  static const Family family = {
      .name = "qwen2_moe",
      .model_type = "qwen2_moe",
      .architectures = {"Qwen2MoeForCausalLM", "Qwen2MoeModel", "Qwen2MoeForSequenceClassification"},
      .writes_head_dim = false,
      .defaults = {.vocab_size = 151936,
                   .hidden_size = 2048,
                   .intermediate_size = 5632,
                   .num_hidden_layers = 24,
                   .num_attention_heads = 16,
                   .num_key_value_heads = 16,
                   .max_position_embeddings = 32768},
      .read =
          [](Reader& reader, Config& config) {
            config.qkv_bias = reader.boolean("qkv_bias", true);
            const bool slides = reader.boolean("use_sliding_window", false);
            const int64_t first = reader.find("max_window_layers") == nullptr ? 28 : reader.count("max_window_layers");
            if (slides)
              read_sliding_layers(reader, config, 4096, [&](int64_t i) { return i < first && i % 2 == 0; });
            else
              reader.ignore({"sliding_window", "layer_types"});
            read_qwen_experts(reader, config, {.num_experts = 60, .num_chosen = 4, .width = 1408});
            config.experts.shared_width = reader.size("shared_expert_intermediate_size", 5632);
            config.experts.shared_gate = true;
          },
      .write =
          [](const Config& config, Json& out) {
            out["qkv_bias"] = config.qkv_bias;
            write_qwen_windows(config, out);
            write_qwen_experts(config, out);
            out["shared_expert_intermediate_size"] = config.experts.shared_width;
          }};
  return family;
}

class Qwen2Moe final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Qwen2 with experts, such as Qwen1.5-MoE-A2.7B (Qwen2MoeForCausalLM)";
  explicit Qwen2Moe(const chassis::Host& host) : Decoder(host, qwen2_moe()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Qwen2MoeForCausalLM\n"
    "architecture=Qwen2MoeModel\n"
    "architecture=Qwen2MoeForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Qwen2Moe)
