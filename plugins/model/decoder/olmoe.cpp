// OLMoE (Muennighoff et al. 2024): Llama's shape with experts in every layer, and norms of q and k over all heads.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {

const Family& olmoe() {
  static const Family family = {
      .name = "olmoe",
      .model_type = "olmoe",
      .architectures = {"OlmoeForCausalLM", "OlmoeModel"},
      .writes_head_dim = false,
      .defaults = {.vocab_size = 50304,
                   .hidden_size = 2048,
                   .intermediate_size = 2048,
                   .num_hidden_layers = 16,
                   .num_attention_heads = 16,
                   .norm_eps = 1e-5,
                   .max_position_embeddings = 4096,
                   .qk_norm_whole = true},
      .read =
          [](Reader& reader, Config& config) {
            if (const int64_t width = config.num_attention_heads * config.head_dim; width != config.hidden_size)
              chassis::fail_config({"head_dim", "hidden_size"}, "num_attention_heads ", config.num_attention_heads,
                                   " times head_dim ", config.head_dim, " is ", width, ", not hidden_size ",
                                   config.hidden_size, ", the width of the norms of q");
            config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
            config.qkv_clip = reader.positive("clip_qkv", 0);
            read_experts(reader, config, reader.same_size("num_experts", "num_local_experts", 64, kMaxExperts),
                         reader.size("num_experts_per_tok", 8), config.intermediate_size);
            read_balance(reader, config, 0.01);
            config.experts.normalize = reader.boolean("norm_topk_prob", false);
          },
      .write =
          [](const Config& config, Json& out) {
            out["attention_bias"] = config.qkv_bias;
            out["clip_qkv"] = config.qkv_clip != 0 ? Json(config.qkv_clip) : Json(nullptr);
            write_experts(config, "num_experts", out);
            out["norm_topk_prob"] = config.experts.normalize;
          }};
  return family;
}

class Olmoe final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "OLMoE-1B-7B and models of its shape (OlmoeForCausalLM)";
  explicit Olmoe(const chassis::Host& host) : Decoder(host, olmoe()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=OlmoeForCausalLM\n"
    "architecture=OlmoeModel\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Olmoe)
