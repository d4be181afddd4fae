// DeepSeek-V2 and V2-Lite (DeepSeek-AI 2024): attention through latents, and experts with a shared one.
#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {
namespace {

void read_latents(Reader& reader, Config& config) {
  LatentAttention& latent = config.latent;
  latent.kv_rank = reader.size("kv_lora_rank", 512);
  const bool has_q = !reader.contains("q_lora_rank") || reader.find("q_lora_rank") != nullptr;
  latent.q_rank = has_q ? reader.size("q_lora_rank", 1536) : 0;
  latent.plain_dim = reader.size("qk_nope_head_dim", 128);
  latent.rotary_dim = reader.size("qk_rope_head_dim", 64);
  latent.value_dim = reader.size("v_head_dim", 128);
  reader.ignore({"head_dim", "qk_head_dim"});  // transformers writes qk_rope_head_dim, and the sum
  config.head_dim = latent.rotary_dim;
  if (config.num_key_value_heads != config.num_attention_heads)
    chassis::fail_config({"num_key_value_heads"}, "num_key_value_heads ", config.num_key_value_heads,
                         " differs from num_attention_heads ", config.num_attention_heads);
}

void read_choice(Reader& reader, Config& config) {
  Experts& experts = config.experts;
  const std::string method = reader.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    experts.groups = reader.size("n_group", 1);
    experts.top_groups = reader.size("topk_group", 1);
    if (experts.num_experts % experts.groups != 0)
      chassis::fail_config({"n_group", "n_routed_experts"}, "n_group ", experts.groups, " does not divide ",
                           experts.num_experts, " experts");
    if (experts.top_groups > experts.groups)
      chassis::fail_config({"topk_group", "n_group"}, "topk_group ", experts.top_groups, " is above n_group ",
                           experts.groups);
    if (const int64_t choice = experts.num_experts / experts.groups * experts.top_groups; experts.num_chosen > choice)
      chassis::fail_config({"num_experts_per_tok"}, "num_experts_per_tok ", experts.num_chosen, " is above the ",
                           choice, " experts of topk_group ", experts.top_groups);
  } else if (method == "greedy") {
    reader.ignore({"n_group", "topk_group"});
  } else {
    reader.fail("topk_method", " '", method, "' is not supported by model '", reader.family(),
                "' (supported: greedy, group_limited_greedy)");
  }
  reader.require_neutral("scoring_func", "softmax");
  // The original code normalizes the weights, transformers does not.
  reader.require_neutral("norm_topk_prob", false);
  reader.require_neutral("moe_layer_freq", 1);
  experts.factor = reader.positive("routed_scaling_factor", 1);
}

// The loss of the original code (DeepSeek-AI 2024, section 2.2.3): of each layer, and of each row with seq_aux. As in
// the other families, it is off unless output_router_logits is true.
void read_own_balance(Reader& reader, Config& config) {
  config.experts.balance.form = reader.boolean("seq_aux", true) ? "sequence" : "batch";
  const double alpha = reader.number("aux_loss_alpha", 0);
  if (alpha < 0) reader.fail("aux_loss_alpha", " is ", alpha, ", expected 0 or more");
  if (reader.boolean("output_router_logits", false))
    config.experts.balance.aux_weight = alpha;
  else if (alpha != 0)
    config.losses_that_are_off.emplace_back("aux_loss_alpha", "output_router_logits is not true");
}

}  // namespace

const Family& deepseek_v2() {
  static const Family family = {
      .name = "deepseek_v2",
      .model_type = "deepseek_v2",
      .architectures = {"DeepseekV2ForCausalLM", "DeepseekV2Model", "DeepseekV2ForSequenceClassification"},
      .ropes = {.types = {"default", "yarn"}},
      .expert_names = {.shared = "mlp.shared_experts"},
      .writes_head_dim = false,
      .defaults = {.vocab_size = 102400, .num_attention_heads = 32, .head_dim = 64, .max_position_embeddings = 2048},
      .read =
          [](Reader& reader, Config& config) {
            read_latents(reader, config);
            config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
            config.mlp_bias = reader.boolean("mlp_bias", false);
            const int64_t num_experts = reader.size("n_routed_experts", 64, kMaxExperts);
            read_experts(reader, config, num_experts, reader.size("num_experts_per_tok", 1),
                         reader.size("moe_intermediate_size", 1407));
            config.experts.shared_width = reader.size("n_shared_experts", 2) * config.experts.width;
            read_choice(reader, config);
            const int64_t num_dense =
                reader.find("first_k_dense_replace") == nullptr ? 0 : reader.count("first_k_dense_replace");
            for (int64_t i = 0; num_dense > 0 && i < config.num_hidden_layers; ++i)
              config.experts.is_dense.push_back(i < num_dense);
            read_own_balance(reader, config);
            reader.ignore({"ep_size", "num_experts"});
          },
      .write =
          [](const Config& config, Json& out) {
            const LatentAttention& latent = config.latent;
            out["kv_lora_rank"] = latent.kv_rank;
            out["q_lora_rank"] = latent.q_rank != 0 ? Json(latent.q_rank) : Json(nullptr);
            out["qk_nope_head_dim"] = latent.plain_dim;
            out["qk_rope_head_dim"] = latent.rotary_dim;
            out["v_head_dim"] = latent.value_dim;
            out["head_dim"] = latent.rotary_dim;
            out["attention_bias"] = config.qkv_bias;
            out["mlp_bias"] = config.mlp_bias;
            write_experts(config, "n_routed_experts", out);
            out["moe_intermediate_size"] = config.experts.width;
            out["n_shared_experts"] = config.experts.shared_width / config.experts.width;
            out["routed_scaling_factor"] = config.experts.factor;
          }};
  return family;
}

class DeepseekV2 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "DeepSeek-V2 and V2-Lite (DeepseekV2ForCausalLM)";
  explicit DeepseekV2(const chassis::Host& host) : Decoder(host, deepseek_v2()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=DeepseekV2ForCausalLM\n"
    "architecture=DeepseekV2Model\n"
    "architecture=DeepseekV2ForSequenceClassification\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::DeepseekV2)
