// Gemma 3, text only (Gemma Team 2025): as Gemma 2, with norms of q and k in place of capped scores, and layers in a
// sliding window that have rotary frequencies of their own.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "gemma.hpp"

namespace decoder {
namespace {

// transformers 5 has a table for each type of layer; 4 has rope_theta, rope_scaling and rope_local_base_freq.
void read_ropes(Reader& reader, Config& config) {
  const RopeSupport support;
  const bool has_theta = reader.find("rope_theta") != nullptr,
             has_local = reader.find("rope_local_base_freq") != nullptr;
  config.rope.theta = reader.positive("rope_theta", 1e6);
  config.local_rope.theta = reader.positive("rope_local_base_freq", 1e4);
  const Json* scaling = reader.find("rope_scaling");
  if (scaling != nullptr)
    read_rope(*scaling, reader.family(), "rope_scaling", support, config.rope, config.unknown_keys);
  const Json* parameters = reader.find("rope_parameters");
  if (parameters == nullptr) return;
  if (!parameters->is_object()) reader.fail("rope_parameters", " is ", parameters->dump(), ", expected a table");
  for (const auto& [type, table] : parameters->items()) {
    const std::string name = "rope_parameters." + type;
    if (type != "full_attention" && type != "sliding_attention") {
      config.unknown_keys.push_back(name);
      continue;
    }
    if (table.is_null()) continue;
    Rope& rope = type == "full_attention" ? config.rope : config.local_rope;
    const Rope before = rope;
    read_rope(table, reader.family(), name, support, rope, config.unknown_keys);
    const std::string beside = type == "full_attention" ? "rope_theta" : "rope_local_base_freq";
    const bool is_given = type == "full_attention" ? has_theta : has_local;
    if (is_given && before.theta != rope.theta)
      chassis::fail_config({beside, name + ".rope_theta"}, beside, " ", before.theta, " contradicts ", name,
                           ".rope_theta ", rope.theta);
    if (type == "full_attention" && scaling != nullptr && (before.type != rope.type || before.factor != rope.factor))
      chassis::fail_config({"rope_scaling", name}, "rope_scaling ", scaling->dump(), " contradicts ", name, " ",
                           table.dump());
  }
}

}  // namespace

const Family& gemma3() {
  static const Family family = {
      .name = "gemma3",
      .model_type = "gemma3_text",
      .architectures = {"Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification"},
      .function_key = "hidden_activation",
      .defaults =
          [] {
            Config config = gemma_defaults(262208, 131072);
            config.qk_norm = config.has_local_rope = true;
            return config;
          }(),
      .read =
          [](Reader& reader, Config& config) {
            read_ropes(reader, config);
            read_gemma(reader, config);
            config.logit_softcap = read_cap(reader, "final_logit_softcapping", 0);
            reader.require_neutral("attn_logit_softcapping", nullptr);  // transformers ignores it
            const int64_t pattern = reader.same_size("sliding_window_pattern", "_sliding_window_pattern", 6);
            read_sliding_layers(reader, config, 4096, [&](int64_t layer) { return (layer + 1) % pattern != 0; });
          },
      .write =
          [](const Config& config, Json& out) {
            write_gemma(config, out);
            write_rope(config.rope, out);
            out["rope_local_base_freq"] = config.local_rope.theta;
            out["rope_parameters"] = {{"sliding_attention", rope_parameters(config.local_rope)},
                                      {"full_attention", rope_parameters(config.rope)}};
          }};
  return family;
}

class Gemma3 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "Gemma 3, text only (Gemma3ForCausalLM)";
  explicit Gemma3(const chassis::Host& host) : Decoder(host, gemma3()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Gemma3ForCausalLM\n"
    "architecture=Gemma3TextModel\n"
    "architecture=Gemma3TextForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Gemma3)
