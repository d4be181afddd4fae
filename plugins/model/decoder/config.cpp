// Reading and writing config.json.
#include "config.hpp"

#include <algorithm>
#include <array>

namespace decoder {
namespace {

using chassis::fail_config;
using chassis::fail_invalid;

constexpr int64_t kMaxHeadDim = 1 << 16;

// transformers' values of hidden_act, and the names in chassis/op.h.
constexpr std::pair<std::string_view, std::string_view> kFunctions[] = {
    {"silu", "silu"},          {"swish", "silu"}, {"gelu", "gelu"}, {"gelu_pytorch_tanh", "gelu_tanh"},
    {"gelu_new", "gelu_tanh"}, {"relu", "relu"}};

// Keys that do not change the program.
constexpr std::string_view kIgnoredKeys[] = {"_attn_implementation_autoset",
                                             "_name_or_path",
                                             "add_cross_attention",
                                             "auto_map",
                                             "bos_token_id",
                                             "chunk_size_feed_forward",
                                             "cross_attention_hidden_size",
                                             "decoder_start_token_id",
                                             "dtype",
                                             "eos_token_id",
                                             "finetuning_task",
                                             "id2label",
                                             "is_decoder",
                                             "is_encoder_decoder",
                                             "is_llama_config",
                                             "label2id",
                                             "max_sequence_length",
                                             "output_attentions",
                                             "output_hidden_states",
                                             "pad_token_id",
                                             "prefix",
                                             "pretraining_tp",
                                             "problem_type",
                                             "return_dict",
                                             "sep_token_id",
                                             "task_specific_params",
                                             "tie_encoder_decoder",
                                             "tokenizer_class",
                                             "torch_dtype",
                                             "torchscript",
                                             "transformers_version",
                                             "unsloth_fixed",
                                             "unsloth_version",
                                             "use_cache"};

// The part of the text in the configuration of a model of text and images, as that of a model of text.
Json text_part(const Family& family, const Json& outer) {
  const auto text = outer.find("text_config");
  if (text == outer.end() || !text->is_object())
    fail_config({"text_config"}, "model_type '", family.outer_model_type, "' needs a text_config, a table");
  Json out = *text;
  out["architectures"] = {family.architectures.front()};
  if (const auto names = outer.find("architectures"); names != outer.end())
    for (const Json& name : *names)
      if (name != std::string(family.outer_architecture)) out["architectures"] = *names;  // to be refused by name
  for (const char* key : {"torch_dtype", "dtype", "quantization_config"})
    if (outer.contains(key) && !out.contains(key)) out[key] = outer[key];
  return out;
}

// The first architecture of config.json that the family has; the family's first if config.json names none.
std::string_view read_architecture(const Family& family, Reader& reader) {
  const Json* names = reader.find("architectures");
  if (names == nullptr) return family.architectures.front();
  if (names->is_array())
    for (const Json& name : *names)
      for (const std::string_view ours : family.architectures)
        if (name.is_string() && name.get_ref<const std::string&>() == ours) return ours;
  fail_config({"architectures"}, "architectures ", names->dump(), " are not supported by model '", family.name,
              "' (supported: ", list_of(family.architectures), ")");
}

void check_model_type(const Family& family, Reader& reader) {
  const std::string type = reader.text("model_type", family.model_type);
  if (type != family.model_type)
    fail_config({"model_type"}, "model_type '", type, "' is not supported by model '", family.name,
                "' (supported: ", family.model_type, ")");
}

void read_heads(Reader& reader, Config& config) {
  config.num_attention_heads = reader.size("num_attention_heads", config.num_attention_heads);
  const int64_t kv_heads = config.num_key_value_heads != 0 ? config.num_key_value_heads : config.num_attention_heads;
  const bool null_kv_heads = reader.contains("num_key_value_heads") && reader.find("num_key_value_heads") == nullptr;
  config.num_key_value_heads =
      null_kv_heads ? config.num_attention_heads : reader.size("num_key_value_heads", kv_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fail_config({"num_attention_heads", "num_key_value_heads"}, "num_attention_heads ", config.num_attention_heads,
                " is not a multiple of num_key_value_heads ", config.num_key_value_heads);
  }
  const bool derived = config.head_dim == 0;
  if (derived && reader.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    fail_config({"hidden_size", "num_attention_heads"}, "hidden_size ", config.hidden_size,
                " is not a multiple of num_attention_heads ", config.num_attention_heads,
                ", and head_dim is not given");
  }
  config.head_dim =
      reader.size("head_dim", derived ? config.hidden_size / config.num_attention_heads : config.head_dim);
  if (config.head_dim > kMaxHeadDim) {  // limits the number of rope angles
    fail_config({"head_dim", "hidden_size", "num_attention_heads"}, "head_dim ", config.head_dim, " (hidden_size ",
                config.hidden_size, ", num_attention_heads ", config.num_attention_heads, ") is above ", kMaxHeadDim);
  }
  if (config.head_dim % 2 != 0) {
    fail_config({"head_dim", "hidden_size", "num_attention_heads"}, "head_dim ", config.head_dim,
                " is odd (hidden_size ", config.hidden_size, ", num_attention_heads ", config.num_attention_heads,
                "): rope rotates pairs, so it must be even");
  }
}

}  // namespace

std::vector<std::string> Reader::unknown_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    const bool known = std::find(read_.begin(), read_.end(), key) != read_.end() ||
                       std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) != std::end(kIgnoredKeys);
    if (!known) keys.push_back(key);
  }
  return keys;
}

int64_t read_num_labels(Reader& reader) {
  const Json* labels = reader.find("id2label");
  if (labels == nullptr) return reader.size("num_labels", 2);  // transformers' default, which it does not write
  if (!labels->is_object() || labels->empty()) reader.fail("id2label", " is ", labels->dump(), ", expected a table");
  const auto num_labels = static_cast<int64_t>(labels->size());
  if (const int64_t given = reader.size("num_labels", num_labels); given != num_labels)
    fail_config({"num_labels", "id2label"}, "num_labels is ", given, ", but id2label has ", num_labels, " labels");
  return num_labels;
}

std::string read_function(Reader& reader, std::string_view key, std::string_view fallback) {
  if (reader.find(key) == nullptr) return std::string(fallback);
  const std::string name = reader.text(key, fallback);
  std::vector<std::string_view> known;
  for (const auto& [theirs, ours] : kFunctions) {
    if (theirs == name) return std::string(ours);
    known.push_back(theirs);
  }
  fail_config({key}, key, " '", name, "' is not supported by model '", reader.family(),
              "' (supported: ", list_of(known), ")");
}

void read_layer_types(Reader& reader, Config& config, const std::string& sliding_name,
                      const std::function<bool(int64_t layer)>& by_default) {
  config.is_sliding.assign(static_cast<size_t>(config.num_hidden_layers), false);
  if (const Json* types = reader.find("layer_types")) {
    const auto num_types = static_cast<int64_t>(types->is_array() ? types->size() : 0);
    if (num_types != config.num_hidden_layers)
      fail_config({"layer_types", "num_hidden_layers"}, "layer_types has ", num_types,
                  " entries, but num_hidden_layers is ", config.num_hidden_layers);
    for (size_t i = 0; i < types->size(); ++i) {
      const Json& type = (*types)[i];
      if (type != sliding_name && type != "full_attention")
        fail_config({"layer_types"}, "layer_types[", i, "] ", type.dump(), " is not supported by model '",
                    reader.family(), "' (supported: full_attention, ", sliding_name, ")");
      config.is_sliding[i] = type == sliding_name;
    }
  } else {
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) config.is_sliding[static_cast<size_t>(i)] = by_default(i);
  }
  if (std::ranges::count(config.is_sliding, true) == 0) config.is_sliding.clear();
}

void read_sliding_layers(Reader& reader, Config& config, int64_t window_fallback,
                         const std::function<bool(int64_t layer)>& by_default) {
  const bool is_null = reader.contains("sliding_window") && reader.find("sliding_window") == nullptr;
  config.sliding_window = is_null ? 0 : reader.size("sliding_window", window_fallback);
  read_layer_types(reader, config, "sliding_attention", by_default);
  const auto first = std::find(config.is_sliding.begin(), config.is_sliding.end(), true);
  if (first != config.is_sliding.end() && config.sliding_window == 0)
    fail_config({"sliding_window", "layer_types"}, "layer ", first - config.is_sliding.begin(),
                " has sliding attention, but there is no sliding_window");
}

void read_expert_layers(Reader& reader, Config& config) {
  const int64_t step = reader.size("decoder_sparse_step", 1);
  std::vector<bool> is_dense;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) is_dense.push_back((i + 1) % step != 0);
  if (const Json* layers = reader.find("mlp_only_layers")) {
    if (!layers->is_array()) reader.fail("mlp_only_layers", " is ", layers->dump(), ", expected a list of layers");
    for (const Json& layer : *layers) {
      if (!layer.is_number_integer() || layer.get<int64_t>() < 0)
        reader.fail("mlp_only_layers", " has ", layer.dump(), ", expected the index of a layer");
      if (const auto i = layer.get<int64_t>(); i < config.num_hidden_layers) is_dense[static_cast<size_t>(i)] = true;
    }
  }
  if (std::find(is_dense.begin(), is_dense.end(), true) != is_dense.end()) config.experts.is_dense = is_dense;
}

void read_experts(Reader& reader, Config& config, int64_t num_experts, int64_t chosen, int64_t width) {
  Experts& experts = config.experts;
  experts.num_experts = num_experts;
  experts.num_chosen = chosen;
  experts.width = width;
  if (chosen > num_experts)
    chassis::fail_config({"num_experts_per_tok"}, "num_experts_per_tok ", chosen, " is above the number of experts, ",
                         num_experts);
  reader.require_neutral("router_jitter_noise", 0.0);
  reader.ignore({"output_router_logits", "router_aux_loss_coef"});
}

// As in transformers, which computes the loss only with output_router_logits.
void read_balance(Reader& reader, Config& config, double fallback) {
  const double weight = reader.number("router_aux_loss_coef", fallback);
  if (weight < 0) reader.fail("router_aux_loss_coef", " is ", weight, ", expected 0 or more");
  if (reader.boolean("output_router_logits", false)) config.experts.balance.aux_weight = weight;
}

void write_experts(const Config& config, std::string_view count_key, Json& out) {
  out[std::string(count_key)] = config.experts.num_experts;
  out["num_experts_per_tok"] = config.experts.num_chosen;
}

Config parse_config(const Family& family, std::string_view text) {
  Config config = family.defaults;
  config.source = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.source.is_object()) fail_invalid("config.json is not a JSON object");
  const auto type = config.source.find("model_type");
  if (!family.outer_model_type.empty() && type != config.source.end() &&
      *type == std::string(family.outer_model_type)) {
    config.source = text_part(family, config.source);
    config.has_towers = true;
  }
  Reader reader(config.source, family.name);

  if (classifies(read_architecture(family, reader))) config.num_labels = read_num_labels(reader);
  check_model_type(family, reader);
  reader.require_neutral("quantization_config", nullptr);
  reader.require_neutral("attention_dropout", 0.0);

  config.vocab_size = reader.size("vocab_size", config.vocab_size);
  config.hidden_size = reader.size("hidden_size", config.hidden_size);
  config.intermediate_size = reader.size("intermediate_size", config.intermediate_size);
  config.num_hidden_layers = reader.size("num_hidden_layers", config.num_hidden_layers, 1 << 16);
  read_heads(reader, config);
  config.function = read_function(reader, family.function_key, config.function);
  config.norm_eps = reader.positive("rms_norm_eps", config.norm_eps);
  config.initializer_range = reader.positive("initializer_range", config.initializer_range);
  config.max_position_embeddings = reader.size("max_position_embeddings", config.max_position_embeddings);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  if (!config.has_local_rope) config.rope = read_both_ropes(reader, family.ropes, config.unknown_keys);
  family.read(reader, config);
  rope_attributes(config.rope, config.head_dim, config.max_position_embeddings);  // refuses what does not fit

  for (std::string& key : reader.unknown_keys()) config.unknown_keys.push_back(std::move(key));
  return config;
}

std::string write_config(const Family& family, const Config& config) {
  Json out = config.source;
  const auto ours = std::find_if(family.architectures.begin(), family.architectures.end(),
                                 [&](std::string_view name) { return classifies(name) == (config.num_labels != 0); });
  out["architectures"] = {*ours};
  out["model_type"] = family.model_type;
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_hidden_layers;
  out["num_attention_heads"] = config.num_attention_heads;
  out["num_key_value_heads"] = config.num_key_value_heads;
  if (family.writes_head_dim || config.head_dim * config.num_attention_heads != config.hidden_size)
    out["head_dim"] = config.head_dim;
  if (!out.contains(family.function_key))
    for (const auto& [theirs, ours] : kFunctions)
      if (ours == config.function) {
        out[std::string(family.function_key)] = theirs;
        break;
      }
  if (!out.contains("max_position_embeddings"))
    out["max_position_embeddings"] = config.max_position_embeddings != 0 ? config.max_position_embeddings : 2048;
  out["rms_norm_eps"] = config.norm_eps;
  out["initializer_range"] = config.initializer_range;
  out["attention_dropout"] = 0.0;
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  if (!config.has_local_rope) write_rope(config.rope, out);
  family.write(config, out);

  // transformers 4 reads torch_dtype, 5 reads dtype.
  Json dtype = "float32";
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (out.contains(key) && out[key].is_string()) dtype = out[key];
  }
  out["torch_dtype"] = dtype;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

}  // namespace decoder
