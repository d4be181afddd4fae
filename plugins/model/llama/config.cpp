// Reading and writing config.json.
#include "config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "chassis/guard.hpp"

namespace llama {
namespace {

using chassis::fail_invalid;

constexpr int64_t kMaxHeadDim = 1 << 16;
constexpr std::string_view kArchitectures[] = {"LlamaForCausalLM", "LlamaModel"};

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

// Reads keys of the source and remembers them; the other keys are unknown.
class Reader {
 public:
  explicit Reader(const Json& object, std::string where = {}) : object_(object), where_(std::move(where)) {}

  // NULL if the key is absent or null.
  const Json* find(std::string_view key) {
    read_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t size(std::string_view key, int64_t fallback, int64_t max = int64_t{1} << 40) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer()) fail_invalid(where_, key, " is ", value->dump(), ", expected a whole number");
    const auto number = value->get<int64_t>();
    if (number < 1 || number > max) fail_invalid(where_, key, " is ", number, ", expected 1 to ", max);
    return number;
  }
  double number(std::string_view key, double fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail_invalid(where_, key, " is ", value->dump(), ", expected a number");
    return value->get<double>();
  }
  double positive(std::string_view key, double fallback) {
    const double value = number(key, fallback);
    if (!(value > 0)) fail_invalid(where_, key, " is ", value, ", expected above 0");
    return value;
  }
  bool boolean(std::string_view key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail_invalid(where_, key, " is ", value->dump(), ", expected true or false");
    return value->get<bool>();
  }
  std::string text(std::string_view key, std::string_view fallback) {
    const Json* value = find(key);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) fail_invalid(where_, key, " is ", value->dump(), ", expected a string");
    return value->get<std::string>();
  }
  // A key of an unsupported feature: it must be absent, null or `neutral`.
  void require_neutral(std::string_view key, const Json& neutral) {
    const Json* value = find(key);
    if (value != nullptr && *value != neutral) {
      fail_invalid(where_, key, " ", value->dump(), " is not supported by model 'llama'");
    }
  }

  std::vector<std::string> unknown_keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) {
      const bool known = std::find(read_.begin(), read_.end(), key) != read_.end() ||
                         std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) != std::end(kIgnoredKeys);
      if (!known) keys.push_back(key);
    }
    return keys;
  }

 private:
  const Json& object_;
  std::string where_;
  std::vector<std::string> read_;
};

template <typename Names>
std::string list_of(const Names& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

void check_architecture(Reader& reader) {
  if (const Json* names = reader.find("architectures")) {
    const bool known =
        names->is_array() && std::any_of(names->begin(), names->end(), [](const Json& name) {
          return std::any_of(std::begin(kArchitectures), std::end(kArchitectures), [&](std::string_view ours) {
            return name.is_string() && name.get<std::string>() == ours;
          });
        });
    if (!known) {
      fail_invalid("architectures ", names->dump(),
                   " are not supported by model 'llama' (supported: ", list_of(kArchitectures), ")");
    }
  }
  const std::string type = reader.text("model_type", "llama");
  if (type != "llama") fail_invalid("model_type '", type, "' is not supported by model 'llama' (supported: llama)");
}

// `table` is rope_parameters or rope_scaling.
void read_rope(const Json& table, const std::string& name, Rope& rope, std::vector<std::string>& unknown) {
  if (!table.is_object()) fail_invalid(name, " is ", table.dump(), ", expected a table");
  Reader reader(table, name + ".");
  rope.theta = reader.positive("rope_theta", rope.theta);
  const std::string old_spelling = reader.text("type", "default");
  rope.type = reader.text("rope_type", old_spelling);
  if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3") {
    fail_invalid("rope type '", rope.type, "' is not supported by model 'llama' (supported: default, linear, llama3)");
  }
  reader.require_neutral("partial_rotary_factor", 1.0);
  if (rope.type != "default") {
    if (table.find("factor") == table.end()) fail_invalid(name, " of type '", rope.type, "' has no factor");
    rope.factor = reader.positive("factor", 1.0);
  }
  if (rope.type == "llama3") {
    for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      if (table.find(key) == table.end()) fail_invalid(name, " of type 'llama3' has no ", key);
    }
    rope.low_freq_factor = reader.positive("low_freq_factor", 1.0);
    rope.high_freq_factor = reader.positive("high_freq_factor", 4.0);
    rope.original_max_position_embeddings = reader.size("original_max_position_embeddings", 8192);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fail_invalid(name, ".high_freq_factor ", rope.high_freq_factor, " is not above low_freq_factor ",
                   rope.low_freq_factor);
    }
  }
  // transformers leaves these behind for types that do not read them.
  for (const char* key : {"factor", "original_max_position_embeddings", "attention_factor"}) {
    if (rope.type == "default") reader.find(key);
  }
  for (const std::string& key : reader.unknown_keys()) unknown.push_back(name + "." + key);
}

bool same_rope(const Rope& a, const Rope& b) {
  return a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

Rope read_both_ropes(Reader& reader, std::vector<std::string>& unknown) {
  Rope rope;
  const Json* theta = reader.find("rope_theta");
  rope.theta = reader.positive("rope_theta", rope.theta);
  Rope scaled = rope;
  const Json* scaling = reader.find("rope_scaling");
  if (scaling != nullptr) read_rope(*scaling, "rope_scaling", scaled, unknown);
  const Json* parameters = reader.find("rope_parameters");
  if (parameters == nullptr) return scaled;
  read_rope(*parameters, "rope_parameters", rope, unknown);
  if (theta != nullptr && theta->get<double>() != rope.theta) {
    fail_invalid("rope_theta ", theta->get<double>(), " contradicts rope_parameters.rope_theta ", rope.theta);
  }
  if (scaling != nullptr && !same_rope(scaled, rope)) {
    fail_invalid("rope_scaling ", scaling->dump(), " contradicts rope_parameters ", parameters->dump());
  }
  return rope;
}

std::string read_function(Reader& reader) {
  const std::string name = reader.text("hidden_act", "silu");
  std::vector<std::string_view> known;
  for (const auto& [theirs, ours] : kFunctions) {
    if (theirs == name) return std::string(ours);
    known.push_back(theirs);
  }
  fail_invalid("hidden_act '", name, "' is not supported by model 'llama' (supported: ", list_of(known), ")");
}

void read_heads(Reader& reader, Config& config) {
  config.num_attention_heads = reader.size("num_attention_heads", config.num_attention_heads);
  config.num_key_value_heads = reader.size("num_key_value_heads", config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fail_invalid("num_attention_heads ", config.num_attention_heads, " is not a multiple of num_key_value_heads ",
                 config.num_key_value_heads);
  }
  if (reader.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    fail_invalid("hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ",
                 config.num_attention_heads, ", and head_dim is not given");
  }
  config.head_dim = reader.size("head_dim", config.hidden_size / config.num_attention_heads);
  if (config.head_dim > kMaxHeadDim) {  // limits the number of rope angles
    fail_invalid("head_dim ", config.head_dim, " (hidden_size ", config.hidden_size, ", num_attention_heads ",
                 config.num_attention_heads, ") is above ", kMaxHeadDim);
  }
  if (config.head_dim % 2 != 0) {
    fail_invalid("head_dim ", config.head_dim, " is odd (hidden_size ", config.hidden_size, ", num_attention_heads ",
                 config.num_attention_heads, "): rope rotates pairs, so it must be even");
  }
}

}  // namespace

Config parse_config(std::string_view text) {
  Config config;
  config.source = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.source.is_object()) fail_invalid("config.json is not a JSON object");
  Reader reader(config.source);

  check_architecture(reader);
  reader.require_neutral("quantization_config", nullptr);
  reader.require_neutral("attention_dropout", 0.0);
  reader.require_neutral("partial_rotary_factor", 1.0);
  reader.require_neutral("sliding_window", nullptr);

  config.vocab_size = reader.size("vocab_size", config.vocab_size);
  config.hidden_size = reader.size("hidden_size", config.hidden_size);
  config.intermediate_size = reader.size("intermediate_size", config.intermediate_size);
  config.num_hidden_layers = reader.size("num_hidden_layers", config.num_hidden_layers, 1 << 16);
  read_heads(reader, config);
  config.function = read_function(reader);
  config.rms_norm_eps = reader.positive("rms_norm_eps", config.rms_norm_eps);
  config.initializer_range = reader.positive("initializer_range", config.initializer_range);
  config.max_position_embeddings = reader.size("max_position_embeddings", config.max_position_embeddings);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.mlp_bias = reader.boolean("mlp_bias", false);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
  config.rope = read_both_ropes(reader, config.unknown_keys);

  for (std::string& key : reader.unknown_keys()) config.unknown_keys.push_back(std::move(key));
  return config;
}

std::string write_config(const Config& config) {
  Json out = config.source;
  out["architectures"] = {"LlamaForCausalLM"};
  out["model_type"] = "llama";
  out["vocab_size"] = config.vocab_size;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_hidden_layers;
  out["num_attention_heads"] = config.num_attention_heads;
  out["num_key_value_heads"] = config.num_key_value_heads;
  out["head_dim"] = config.head_dim;
  if (!out.contains("hidden_act")) out["hidden_act"] = "silu";
  if (!out.contains("max_position_embeddings")) out["max_position_embeddings"] = 2048;
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["initializer_range"] = config.initializer_range;
  out["attention_bias"] = config.attention_bias;
  out["attention_dropout"] = 0.0;
  out["mlp_bias"] = config.mlp_bias;
  out["tie_word_embeddings"] = config.tie_word_embeddings;

  // transformers 4 reads rope_theta and rope_scaling, 5 reads rope_parameters.
  Json parameters = {{"rope_type", config.rope.type}, {"rope_theta", config.rope.theta}};
  if (config.rope.type != "default") parameters["factor"] = config.rope.factor;
  if (config.rope.type == "llama3") {
    parameters["low_freq_factor"] = config.rope.low_freq_factor;
    parameters["high_freq_factor"] = config.rope.high_freq_factor;
    parameters["original_max_position_embeddings"] = config.rope.original_max_position_embeddings;
  }
  Json scaling = nullptr;
  if (config.rope.type != "default") {
    scaling = parameters;
    scaling.erase("rope_theta");
  }
  out["rope_theta"] = config.rope.theta;
  out["rope_scaling"] = scaling;
  out["rope_parameters"] = parameters;

  // The same for torch_dtype and dtype.
  Json dtype = "float32";
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (out.contains(key) && out[key].is_string()) dtype = out[key];
  }
  out["torch_dtype"] = dtype;
  out["dtype"] = dtype;
  return out.dump(2) + "\n";
}

std::vector<double> inverse_frequencies(const Rope& rope, int64_t head_dim) {
  // PyTorch computes scalar / tensor as reciprocal · scalar; the order of roundings here is the same.
  const auto reciprocal = [](float x) { return 1.0f / x; };
  const float factor = static_cast<float>(rope.factor);
  const double low_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.low_freq_factor;
  const double high_wavelength = static_cast<double>(rope.original_max_position_embeddings) / rope.high_freq_factor;

  std::vector<double> out;
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    float inv_freq =
        reciprocal(static_cast<float>(std::pow(static_cast<double>(static_cast<float>(rope.theta)), exponent)));
    if (rope.type == "linear") inv_freq /= factor;
    if (rope.type == "llama3") {
      const float wavelength = reciprocal(inv_freq) * static_cast<float>(2 * std::numbers::pi);
      if (wavelength > static_cast<float>(low_wavelength)) {
        inv_freq /= factor;
      } else if (!(wavelength < static_cast<float>(high_wavelength))) {
        const float turns = reciprocal(wavelength) * static_cast<float>(rope.original_max_position_embeddings);
        const float smooth = (turns - static_cast<float>(rope.low_freq_factor)) /
                             static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
        inv_freq = (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
      }
    }
    out.push_back(inv_freq);
  }
  return out;
}

}  // namespace llama
