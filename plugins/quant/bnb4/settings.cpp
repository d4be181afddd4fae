// Options, and bitsandbytes' part of config.json.
#include "settings.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "chassis/guard.hpp"
#include "quant_state.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kConfigPlace = "quantization_config of the model's config.json: ";

constexpr const char* kHead = "lm_head";
// bitsandbytes stores the block size only with each weight, and transformers ignores this key.
constexpr const char* kBlockSize = "bnb_4bit_blocksize";
// transformers quantizes the linears of experts before version 5, and leaves them since; its files do not say which.
constexpr const char* kExperts = "bnb_4bit_experts";

Code code_from(const std::string& name) { return name == "nf4" ? Code::kNf4 : Code::kFp4; }

template <typename T>
T value_or(const OrderedJson& json, const char* key, T fallback) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  const bool fits = std::is_same_v<T, bool> ? found->is_boolean() : found->is_string();
  if (!fits)
    fail_invalid(kConfigPlace, key, " is ", found->dump(-1, ' ', true, OrderedJson::error_handler_t::replace),
                 ", expected ", std::is_same_v<T, bool> ? "true or false" : "a text");
  return found->template get<T>();
}

// The keys that BitsAndBytesConfig of transformers writes. The compute dtype among them is [precision] compute here;
// the keys of LLM.int8 have no meaning in 4 bits.
OrderedJson quantization_config(const Settings& s) {
  // transformers skips the head by default only if no list is given.
  std::vector<std::string> skip = s.skip;
  if (!skip.empty() && !is_skipped(skip, kHead)) skip.emplace_back(kHead);
  OrderedJson config = {{"_load_in_4bit", true},
                        {"_load_in_8bit", false},
                        {"bnb_4bit_compute_dtype", "bfloat16"},
                        {"bnb_4bit_quant_storage", "uint8"},
                        {"bnb_4bit_quant_type", code_name(s.code)},
                        {"bnb_4bit_use_double_quant", s.is_nested},
                        {"llm_int8_enable_fp32_cpu_offload", false},
                        {"llm_int8_has_fp16_weight", false},
                        {"llm_int8_skip_modules", skip.empty() ? OrderedJson() : OrderedJson(skip)},
                        {"llm_int8_threshold", 6.0},
                        {"load_in_4bit", true},
                        {"load_in_8bit", false},
                        {"quant_method", "bitsandbytes"}};
  if (s.block_size != Settings().block_size) config[kBlockSize] = s.block_size;
  if (s.has_experts) config[kExperts] = true;
  return config;
}

}  // namespace

const Options& options() {
  static const Options schema = {
      option("type", "nf4").choices({"nf4", "fp4"}).doc("the 4-bit code (bnb_4bit_quant_type)"),
      option("block_size", 64).range(kMinBlock, kMaxBlock).doc("weights that share a scale: a power of 2"),
      option("double_quant", false).doc("store the scales in 8 bits too (bnb_4bit_use_double_quant)"),
      option("experts", true)
          .doc("quantize the linears of experts too, each expert by itself. Where a model's files are quantized "
               "already, "
               "this says whether those of experts are, if its config.json does not; without it they are not"),
      option("skip", std::vector<std::string>{})
          .doc("linears that stay as they are, by the end of their name, \"down_proj\", or by what they are below, "
               "\"model.layers.0\"; the head and embeddings always do (llm_int8_skip_modules)"),
  };
  return schema;
}

std::string place_of(const Host& host, std::string_view option) {
  const std::string origin = option_origin(host, option);
  return (origin == "default" ? "" : origin + ": ") + "quant." + std::string(option) + ": ";
}

Settings settings_from_options(const Host& host) {
  Settings s;
  s.code = code_from(option_value<std::string>(host, "type"));
  s.block_size = option_value<int64_t>(host, "block_size");
  if (!is_block_size(s.block_size))
    fail_invalid(place_of(host, "block_size"), s.block_size,
                 " is not a power of 2; choose 32, 64, 128, 256, 512, 1024, 2048 or 4096");
  s.is_nested = option_value<bool>(host, "double_quant");
  s.has_experts = option_value<bool>(host, "experts");
  s.skip = option_value<std::vector<std::string>>(host, "skip");
  for (const std::string& name : s.skip)
    if (name.empty()) fail_invalid(place_of(host, "skip"), "an empty name would match every linear");
  return s;
}

FileSettings parse_quantization_config(std::string_view text) {
  const OrderedJson json = OrderedJson::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object()) fail_invalid(kConfigPlace, "it is not a JSON object");
  const std::string method = value_or<std::string>(json, "quant_method", "bitsandbytes");
  if (method != "bitsandbytes")
    fail_invalid(kConfigPlace, "quant_method is '", method, "', and bnb4 reads bitsandbytes in 4 bits only");
  if (value_or(json, "load_in_8bit", false))
    fail_invalid(kConfigPlace,
                 "load_in_8bit: LLM.int8 is not supported; use a checkpoint that is not quantized, or one in 4 "
                 "bits");
  if (!value_or(json, "load_in_4bit", false)) fail_invalid(kConfigPlace, "load_in_4bit is not true");
  FileSettings s;
  const std::string type = value_or<std::string>(json, "bnb_4bit_quant_type", "fp4");
  if (type != "nf4" && type != "fp4")
    fail_invalid(kConfigPlace, "bnb_4bit_quant_type is '", type, "', expected nf4 or fp4");
  s.code = code_from(type);
  s.is_nested = value_or(json, "bnb_4bit_use_double_quant", false);
  if (const auto size = json.find(kBlockSize); size != json.end() && !size->is_null()) {
    if (!size->is_number_integer() || !is_block_size(size->get<int64_t>()))
      fail_invalid(kConfigPlace, kBlockSize, " is ", size->dump(-1, ' ', true, OrderedJson::error_handler_t::replace),
                   ", expected a power of 2 from 32 to 4096");
    s.block_size = size->get<int64_t>();
  }
  if (json.contains(kExperts)) s.has_experts = value_or(json, kExperts, false);
  const std::string storage = value_or<std::string>(json, "bnb_4bit_quant_storage", "uint8");
  if (storage != "uint8")
    fail_invalid(kConfigPlace, "bnb_4bit_quant_storage is '", storage,
                 "', and only uint8 is read; save the model with it");
  if (const auto skip = json.find("llm_int8_skip_modules"); skip != json.end() && !skip->is_null()) {
    if (!skip->is_array()) fail_invalid(kConfigPlace, "llm_int8_skip_modules is not a list");
    for (const OrderedJson& name : *skip) {
      if (!name.is_string() || name.get_ref<const std::string&>().empty())
        fail_invalid(kConfigPlace, "llm_int8_skip_modules has an item that is not a name");
      s.skip.push_back(name.get<std::string>());
    }
  }
  const OrderedJson known = quantization_config({});
  for (const auto& [key, value] : json.items())
    if (!known.contains(key) && key != kBlockSize && key != kExperts) s.unknown_keys.push_back(key);
  return s;
}

std::string quantization_config_text(const Settings& s) { return quantization_config(s).dump(2); }

bool is_skipped(const std::vector<std::string>& skip, std::string_view module) {
  return std::any_of(skip.begin(), skip.end(),
                     [&](const std::string& name) { return module.ends_with(name) || module.starts_with(name + "."); });
}

}  // namespace bnb4
