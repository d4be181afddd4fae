// Qwen3 (Yang et al. 2025): Llama's shape with a norm of every head of q and k, and its own head_dim.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "qwen.hpp"

namespace decoder {

const Family& qwen3() {
  static const Family family = {.name = "qwen3",
                                .model_type = "qwen3",
                                .architectures = {"Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"},
                                .defaults = {.vocab_size = 151936,
                                             .intermediate_size = 22016,
                                             .num_key_value_heads = 32,
                                             .head_dim = 128,
                                             .max_position_embeddings = 32768,
                                             .qk_norm = true},
                                .read =
                                    [](Reader& reader, Config& config) {
                                      config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
                                      read_qwen_windows(reader, config);
                                    },
                                .write =
                                    [](const Config& config, Json& out) {
                                      out["attention_bias"] = config.qkv_bias;
                                      write_qwen_windows(config, out);
                                    }};
  return family;
}

class Qwen3 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Qwen3, dense (Qwen3ForCausalLM)";
  explicit Qwen3(const chassis::Host& host) : Decoder(host, qwen3()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Qwen3ForCausalLM\n"
    "architecture=Qwen3Model\n"
    "architecture=Qwen3ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Qwen3)
