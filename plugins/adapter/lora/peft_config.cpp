// Reads and writes the keys of peft.LoraConfig.
#include "peft_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "chassis/guard.hpp"

namespace lora {

using namespace chassis;
using Json = nlohmann::ordered_json;

namespace {

class PeftReader {
 public:
  explicit PeftReader(const Json& json) : json_(json) {}

  // NULL if the key is absent or null.
  const Json* find(const std::string& key) {
    read_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  void ignore(std::initializer_list<const char*> keys) {
    for (const char* key : keys) read_.insert(key);
  }
  // Refuses a key that would change the result and is not supported here, unless its value is absent, null, false, 0 or
  // empty.
  void refuse(const std::string& key, const std::string& what) {
    const Json* value = find(key);
    if (value == nullptr || is_off(*value)) return;
    fail_invalid(key, " = ", value->dump().substr(0, 200), ": ", what, " is not supported here");
  }
  bool flag(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail_invalid(key, " is ", value->dump(), ", expected true or false");
    return value->get<bool>();
  }
  double number(const std::string& key, double fallback, double min, double max) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail_invalid(key, " is ", value->dump(), ", expected a number");
    const double number = value->get<double>();
    if (!(number >= min && number <= max)) fail_invalid(key, " is ", number, ", expected ", min, " to ", max);
    return number;
  }
  int64_t integer(const std::string& key, int64_t fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer()) fail_invalid(key, " is ", value->dump(), ", expected a whole number");
    const auto number = value->get<int64_t>();
    if (number < 1 || number > 1 << 20) fail_invalid(key, " is ", number, ", expected 1 to ", 1 << 20);
    return number;
  }
  // A list of names, or one text, which is a regular expression for whole names.
  std::vector<NamePattern> names(const std::string& key) {
    const Json* value = find(key);
    std::vector<NamePattern> out;
    if (value == nullptr) return out;
    if (value->is_string()) {
      const auto text = value->get<std::string>();
      out.emplace_back(text == kAllLinear ? text : "(" + text + ")");
    } else if (value->is_array()) {
      for (const Json& item : *value) {
        if (!item.is_string()) fail_invalid(key, " has ", item.dump(), ", expected names of modules");
        out.emplace_back(item.get<std::string>());
      }
    } else {
      fail_invalid(key, " is ", value->dump(), ", expected names of modules");
    }
    return out;
  }
  std::vector<NamePattern> endings(const std::string& key) {
    const Json* value = find(key);
    std::vector<NamePattern> out;
    if (value == nullptr) return out;
    for (const Json& item : value->is_array() ? *value : Json::array({*value})) {
      if (!item.is_string()) fail_invalid(key, " has ", item.dump(), ", expected names of modules");
      out.push_back(NamePattern::ending(item.get<std::string>()));
    }
    return out;
  }
  template <typename Number>
  std::vector<std::pair<EndPattern, Number>> by_pattern(const std::string& key) {
    std::vector<std::pair<EndPattern, Number>> out;
    const Json* value = find(key);
    if (value == nullptr) return out;
    if (!value->is_object()) fail_invalid(key, " is ", value->dump(), ", expected an object");
    for (const auto& [pattern, item] : value->items()) {
      const bool fits = std::is_integral_v<Number> ? item.is_number_integer() : item.is_number();
      if (!fits || item.template get<double>() <= 0 || item.template get<double>() > 1e9)
        fail_invalid(key, ".", pattern, " is ", item.dump(), ", expected a number above 0");
      out.emplace_back(EndPattern(pattern), item.template get<Number>());
    }
    return out;
  }
  void refuse_unknown() {
    for (const auto& [key, value] : json_.items())
      if (!read_.contains(key) && !value.is_null() && !is_off(value))
        fail_invalid(key, " = ", value.dump().substr(0, 200), " is not known here");
  }

 private:
  static bool is_off(const Json& value) {
    return (value.is_boolean() && !value.get<bool>()) || ((value.is_array() || value.is_object()) && value.empty()) ||
           (value.is_number() && value.get<double>() == 0);
  }

  const Json& json_;
  std::set<std::string> read_;
};

void check_init(PeftReader& in) {
  const Json* init = in.find("init_lora_weights");
  if (init == nullptr || init->is_boolean()) return;
  if (init->is_string() && *init == "gaussian") return;
  fail_invalid("init_lora_weights = ", init->dump(), " is not supported here; its weights change the base model");
}

// Adapters of other tasks have heads that no model here has.
bool is_classifier(PeftReader& in) {
  const Json* task = in.find("task_type");
  if (task == nullptr || *task == "CAUSAL_LM") return false;
  if (*task == "SEQ_CLS") return true;
  fail_invalid("task_type = ", task->dump(),
               " is not supported here; models are causal language models or score sequences (SEQ_CLS)");
}

// For SEQ_CLS, PEFT adds both names of heads to modules_to_save, whichever the model has; a head of scores is trained
// without being named.
std::vector<NamePattern> without_heads(std::vector<NamePattern> modules) {
  std::erase_if(modules, [](const NamePattern& p) { return p.text() == "classifier" || p.text() == "score"; });
  return modules;
}

// Rationale: unsloth computes with lora_B of experts as [out, experts, rank], where PEFT has [out, rank, experts].
// Shapes and names agree, so the branches of all experts would be exchanged without a word (unslothai/unsloth issue
// 6930).
void refuse_other_order(PeftReader& in, const Settings& settings) {
  const Json* mapping = in.find("auto_mapping");
  if (settings.target_parameters.empty() || mapping == nullptr || !mapping->is_object()) return;
  if (const auto fixed = mapping->find("unsloth_fixed"); fixed != mapping->end() && *fixed == true)
    fail_invalid(
        "auto_mapping.unsloth_fixed = true with target_parameters: unsloth stores lora_B of experts in another "
        "order than PEFT, which this plugin reads; merge it with unsloth, and train that model");
}

}  // namespace

Settings settings_from_peft(std::string_view config_json, const Settings& options) {
  Json json;
  try {
    json = Json::parse(config_json);
  } catch (const Json::exception& error) {
    fail_invalid("is not JSON: ", error.what());
  }
  if (!json.is_object()) fail_invalid("is not a JSON object");
  PeftReader in(json);
  const Json* type = in.find("peft_type");
  if (type == nullptr || *type != "LORA")
    fail_invalid("peft_type is ", type == nullptr ? "missing" : type->dump(), ", this plugin reads \"LORA\"");
  in.refuse("use_dora", "DoRA");
  in.refuse("use_qalora", "QALoRA");
  in.refuse("lora_bias", "a bias of B");
  in.refuse("layer_replication", "replicating layers");
  in.refuse("trainable_token_indices", "training single tokens");
  in.refuse("alora_invocation_tokens", "activated LoRA");
  in.refuse("arrow_config", "Arrow");
  in.refuse("corda_config", "CorDA");
  in.refuse("eva_config", "EVA");
  in.refuse("loftq_config", "LoftQ");
  in.refuse("megatron_config", "Megatron");
  check_init(in);
  // PEFT, too, derives fan_in_fan_out from the layers that it finds; auto_mapping only names classes.
  in.ignore({"auto_mapping", "base_model_name_or_path", "fan_in_fan_out", "inference_mode", "megatron_core",
             "peft_version", "qalora_group_size", "revision"});
  const Json* const pattern = in.find("layers_pattern");
  if (pattern != nullptr && !pattern->empty() && *pattern != "" && in.find("layers_to_transform") == nullptr)
    fail_invalid("layers_pattern = ", pattern->dump(), " needs layers_to_transform, as in PEFT");

  Settings s;
  s.rank = in.integer("r", 8);
  s.alpha = in.number("lora_alpha", 8, kLeastAlpha, 1e9);
  s.dropout = in.number("lora_dropout", 0, 0, 0.999);
  s.targets = in.names("target_modules");
  s.target_parameters = in.names("target_parameters");
  if (s.targets.empty() && s.target_parameters.empty()) fail_invalid("target_modules is missing");
  s.exclude = in.names("exclude_modules");
  s.is_classifier = is_classifier(in);
  s.modules_to_save = in.endings("modules_to_save");
  if (s.is_classifier) s.modules_to_save = without_heads(std::move(s.modules_to_save));
  s.ties_saved = in.flag("ensure_weight_tying");
  s.rank_pattern = in.by_pattern<int64_t>("rank_pattern");
  s.alpha_pattern = in.by_pattern<double>("alpha_pattern");
  s.use_rslora = in.flag("use_rslora");
  if (const Json* layers = in.find("layers_to_transform")) {
    std::vector<int64_t> list;
    for (const Json& item : layers->is_array() ? *layers : Json::array({*layers})) {
      if (!item.is_number_integer()) fail_invalid("layers_to_transform has ", item.dump(), ", expected indexes");
      list.push_back(item.get<int64_t>());
    }
    s.layers = LayerRanges(list);
  }
  if (const Json* bias = in.find("bias"); bias != nullptr && *bias != "none") {
    if (*bias != "lora_only")
      fail_invalid("bias = ", bias->dump(), " is not supported here; \"none\" and \"lora_only\" are");
    s.trains_bias = true;
  }
  s.lora_plus_ratio = options.lora_plus_ratio;
  refuse_other_order(in, s);
  in.refuse_unknown();
  return s;
}

std::string version_in_peft(std::string_view config_json) {
  const Json json = Json::parse(config_json, nullptr, false);
  const Json version = json.is_object() ? json.value("peft_version", Json()) : Json();
  return version.is_string() ? version.get<std::string>() : "";
}

std::string peft_config(const Settings& s, const PeftNames& names, std::string_view base_path,
                        std::string_view base_config_json) {
  const Json base = Json::parse(base_config_json, nullptr, false);
  const bool is_gpt2 = base.is_object() && base.value("model_type", Json()) == "gpt2";  // its linears are Conv1D
  const auto by_module = [](const auto& list) {
    Json object = Json::object();
    for (const auto& [module, value] : list) object[module] = value;
    return object;
  };
  Json json;
  json["alpha_pattern"] = by_module(names.alpha_pattern);
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = base_path;
  json["bias"] = s.trains_bias ? "lora_only" : "none";
  if (names.ties_saved_modules) json["ensure_weight_tying"] = true;
  json["fan_in_fan_out"] = is_gpt2;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["lora_alpha"] = s.alpha == std::floor(s.alpha) ? Json(static_cast<int64_t>(s.alpha)) : Json(s.alpha);
  json["lora_dropout"] = s.dropout;
  json["modules_to_save"] = names.modules_to_save.empty() ? Json() : Json(names.modules_to_save);
  json["peft_type"] = "LORA";
  // By it, readers know the orientation of experts' matrices, which PEFT changed in 0.19.
  if (!names.target_parameters.empty()) json["peft_version"] = "0.21.0";
  json["r"] = s.rank;
  json["rank_pattern"] = by_module(names.rank_pattern);
  json["target_modules"] = names.target_modules;
  if (!names.target_parameters.empty()) json["target_parameters"] = names.target_parameters;
  json["task_type"] = names.has_head ? "SEQ_CLS" : "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = s.use_rslora;
  return json.dump(2) + "\n";
}

}  // namespace lora
