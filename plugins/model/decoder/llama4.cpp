// Llama 4 (Meta 2025), its text model: most layers rotate and see a chunk of their document, the others see all of it
// without positions; an expert's input is scaled by its weight.
#include <algorithm>

#include "chassis/model.hpp"
#include "chassis/plugin.hpp"
#include "families.hpp"

namespace decoder {
namespace {

// The layers without rope: no_rope_layers has 1 for each layer that rotates, 0 for the others.
void read_rotated_layers(Reader& reader, Config& config) {
  const int64_t interval = reader.size("no_rope_layer_interval", 4);
  const Json* flags = reader.find("no_rope_layers");
  if (flags != nullptr && !flags->is_array()) reader.fail("no_rope_layers", " is ", flags->dump(), ", expected a list");
  const auto count = static_cast<int64_t>(flags != nullptr ? flags->size() : 0);
  if (count != 0 && count != config.num_hidden_layers)
    chassis::fail_config({"no_rope_layers", "num_hidden_layers"}, "no_rope_layers has ", count,
                         " entries, but num_hidden_layers is ", config.num_hidden_layers);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    bool rotates = (i + 1) % interval != 0;
    if (count != 0) {
      const Json& flag = (*flags)[static_cast<size_t>(i)];
      if (flag != 0 && flag != 1)
        reader.fail("no_rope_layers", "[", i, "] is ", flag.dump(), ", expected 1 (with rope) or 0");
      rotates = flag == 1;
    }
    config.has_no_rope.push_back(!rotates);
  }
}

void read_chunks(Reader& reader, Config& config) {
  const bool is_null = reader.contains("attention_chunk_size") && reader.find("attention_chunk_size") == nullptr;
  config.attention_chunk = is_null ? 0 : reader.size("attention_chunk_size", 8192);
  read_layer_types(reader, config, "chunked_attention",
                   [&](int64_t i) { return !config.has_no_rope[static_cast<size_t>(i)]; });
  const auto first = std::ranges::find(config.is_sliding, true);
  if (first != config.is_sliding.end() && config.attention_chunk == 0)
    chassis::fail_config({"attention_chunk_size", "layer_types"}, "layer ", first - config.is_sliding.begin(),
                         " has chunked attention, but there is no attention_chunk_size");
}

// Early files have 4 for true.
bool read_temperature(Reader& reader) {
  const Json* value = reader.find("attn_temperature_tuning");
  if (value == nullptr) return true;
  if (value->is_boolean()) return value->get<bool>();
  if (*value != 4 && *value != 0)
    reader.fail("attn_temperature_tuning", " is ", value->dump(), ", expected true, false, 4 (true) or 0 (false)");
  return *value == 4;
}

// moe_layers, or each interleave_moe_layer_step-th layer.
void read_moe_layers(Reader& reader, Config& config) {
  const int64_t step = reader.size("interleave_moe_layer_step", 1);
  std::vector<bool> is_dense;
  if (const Json* layers = reader.find("moe_layers")) {
    if (!layers->is_array()) reader.fail("moe_layers", " is ", layers->dump(), ", expected a list of layers");
    is_dense.assign(static_cast<size_t>(config.num_hidden_layers), true);
    for (const Json& layer : *layers) {
      if (!layer.is_number_integer() || layer.get<int64_t>() < 0 || layer.get<int64_t>() >= config.num_hidden_layers)
        chassis::fail_config({"moe_layers", "num_hidden_layers"}, "moe_layers has ", layer.dump(),
                             ", which is not one of the ", config.num_hidden_layers, " layers from 0 on");
      is_dense[layer.get<size_t>()] = false;
    }
  } else {
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) is_dense.push_back((i + 1) % step != 0);
  }
  const int64_t num_dense = std::ranges::count(is_dense, true);
  if (num_dense == config.num_hidden_layers)
    config.experts = {};
  else if (num_dense > 0)
    config.experts.is_dense = is_dense;
}

}  // namespace

const Family& llama4() {
  static const Family family = {
      .name = "llama4",
      .model_type = "llama4_text",
      .architectures = {"Llama4ForCausalLM", "Llama4TextModel"},
      .ropes = {.types = {"default", "llama3"}, .theta = 500000},
      .expert_names = {.experts = "feed_forward.experts",
                       .stacked = "feed_forward.experts",
                       .shared = "feed_forward.shared_expert",
                       .is_joined = true},
      .mlp = "feed_forward",
      .outer_model_type = "llama4",
      .outer_architecture = "Llama4ForConditionalGeneration",
      .defaults = {.vocab_size = 202048,
                   .hidden_size = 5120,
                   .intermediate_size = 8192,
                   .num_hidden_layers = 48,
                   .num_attention_heads = 40,
                   .num_key_value_heads = 8,
                   .head_dim = 128,
                   .norm_eps = 1e-5,
                   .max_position_embeddings = 4096 * 32,
                   .rope_interleaved = true},
      .read =
          [](Reader& reader, Config& config) {
            config.qkv_bias = config.output_bias = reader.boolean("attention_bias", false);
            config.dense_width = reader.size("intermediate_size_mlp", 16384);
            read_rotated_layers(reader, config);
            read_chunks(reader, config);
            config.plain_qk_norm = reader.boolean("use_qk_norm", true);
            const int64_t floor_scale = reader.size("floor_scale", 8192);
            config.attn_scale = reader.number("attn_scale", 0.1);
            if (read_temperature(reader)) config.floor_scale = floor_scale;
            read_experts(reader, config, reader.size("num_local_experts", 16, kMaxExperts),
                         reader.size("num_experts_per_tok", 1), config.intermediate_size);
            // transformers computes none, whatever router_aux_loss_coef is.
            if (reader.boolean("output_router_logits", false) && reader.number("router_aux_loss_coef", 0.001) != 0)
              config.losses_that_are_off.emplace_back("output_router_logits", "transformers has none for Llama 4");
            config.experts.score = "sigmoid";
            config.experts.scales_input = true;
            config.experts.shared_width = config.intermediate_size;
            read_moe_layers(reader, config);
            reader.ignore({"for_llm_compressor"});
          },
      .write =
          [](const Config& config, Json& out) {
            const auto layers = static_cast<size_t>(config.num_hidden_layers);
            const Experts& experts = config.experts;
            Json rotated = Json::array(), types = Json::array(), moe_layers = Json::array();
            for (size_t i = 0; i < layers; ++i) {
              rotated.push_back(config.has_no_rope[i] ? 0 : 1);
              const bool is_chunked = !config.is_sliding.empty() && config.is_sliding[i];
              types.push_back(is_chunked ? "chunked_attention" : "full_attention");
              if (experts.are_in(i)) moe_layers.push_back(i);
            }
            out["attention_bias"] = config.qkv_bias;
            out["intermediate_size_mlp"] = config.dense_width;
            out["no_rope_layers"] = rotated;
            out["layer_types"] = types;
            out["attention_chunk_size"] = config.attention_chunk != 0 ? Json(config.attention_chunk) : Json(nullptr);
            out["use_qk_norm"] = config.plain_qk_norm;
            out["attn_temperature_tuning"] = config.floor_scale != 0;
            out["attn_scale"] = config.attn_scale;
            if (config.floor_scale != 0) out["floor_scale"] = config.floor_scale;
            out["moe_layers"] = moe_layers;
            if (experts.num_experts != 0) write_experts(config, "num_local_experts", out);
          }};
  return family;
}

class Llama4 final : public Decoder {
 public:
  static constexpr std::string_view kDoc = "the text model of Llama 4 Scout and Maverick (Llama4ForCausalLM)";
  explicit Llama4(const chassis::Host& host) : Decoder(host, llama4()) {}
};

}  // namespace decoder

CHASSIS_PLUGIN(
    "architecture=Llama4ForCausalLM\n"
    "architecture=Llama4TextModel\n"
    "architecture=Llama4ForConditionalGeneration\n"
    "requires=chassis.log/1\n"
    "license=Apache-2.0\n",
    decoder::Llama4)
