// Gemma 2 (Gemma Team 2024): gains of 1 + weight, norms on both sides, capped scores and logits, every second layer in
// a sliding window.
#include <cmath>

#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "gemma.hpp"

namespace decoder {

const Family& gemma2() {
  static const Family family = {
      .name = "gemma2",
      .model_type = "gemma2",
      .architectures = {"Gemma2ForCausalLM", "Gemma2Model", "Gemma2ForSequenceClassification"},
      .function_key = "hidden_activation",
      .defaults = gemma_defaults(256000, 8192),
      .read =
          [](Reader& reader, Config& config) {
            read_gemma(reader, config);
            config.logit_softcap = read_cap(reader, "final_logit_softcapping", 30.0);
            config.attention_softcap = read_cap(reader, "attn_logit_softcapping", 50.0);
            read_sliding_layers(reader, config, 4096, [](int64_t layer) { return layer % 2 == 0; });
          },
      .write =
          [](const Config& config, Json& out) {
            write_gemma(config, out);
            out["attn_logit_softcapping"] = config.attention_softcap != 0 ? Json(config.attention_softcap) : Json();
          }};
  return family;
}

class Gemma2 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Gemma 2 (Gemma2ForCausalLM)";
  explicit Gemma2(const chassis::Host& host) : Decoder(host, gemma2()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Gemma2ForCausalLM\n"
    "architecture=Gemma2Model\n"
    "architecture=Gemma2ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Gemma2)
