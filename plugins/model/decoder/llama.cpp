// The Llama family (Touvron et al. 2023; Llama Team 2024).
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {

const Family& llama() {
  static const Family family = {.name = "llama",
                                .model_type = "llama",
                                .architectures = {"LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification"},
                                .read =
                                    [](Reader& reader, Config& config) {
                                      reader.require_neutral("sliding_window", nullptr);
                                      config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
                                      config.mlp_bias = reader.boolean("mlp_bias", false);
                                    },
                                .write =
                                    [](const Config& config, Json& out) {
                                      out["attention_bias"] = config.qkv_bias;
                                      out["mlp_bias"] = config.mlp_bias;
                                    }};
  return family;
}

class Llama final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Llama 1 to 3.x and models of their shape (LlamaForCausalLM)";
  explicit Llama(const chassis::Host& host) : Decoder(host, llama()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=LlamaForCausalLM\n"
    "architecture=LlamaModel\n"
    "architecture=LlamaForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Llama)
