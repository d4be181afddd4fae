// Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's shape with biases on q, k and v.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "qwen.hpp"

namespace decoder {

const Family& qwen2() {
  static const Family family = {.name = "qwen2",
                                .model_type = "qwen2",
                                .architectures = {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification"},
                                .writes_head_dim = false,
                                .defaults = {.vocab_size = 151936,
                                             .intermediate_size = 22016,
                                             .num_key_value_heads = 32,
                                             .max_position_embeddings = 32768,
                                             .qkv_bias = true},
                                .read =
                                    [](Reader& reader, Config& config) {
                                      reader.require_neutral("use_mrope", false);
                                      read_qwen_windows(reader, config);
                                    },
                                .write = write_qwen_windows};
  return family;
}

class Qwen2 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Qwen2 and Qwen2.5 (Qwen2ForCausalLM)";
  explicit Qwen2(const chassis::Host& host) : Decoder(host, qwen2()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Qwen2ForCausalLM\n"
    "architecture=Qwen2Model\n"
    "architecture=Qwen2ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Qwen2)
