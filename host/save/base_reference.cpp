// Quantizations are compared key by key, without knowing what a key means.
#include "host/save/base_reference.hpp"

#include <set>
#include <utility>

#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/session/session.hpp"

namespace chassis {
namespace {

std::string stored_by(const std::string& plugin) {
  return plugin.empty() ? std::string("not quantized") : "quantized by " + printable(plugin);
}

// "bnb_4bit_quant_type was "nf4", is "fp4"; …"; empty if all keys have the same values.
std::string differences(const Json& then, const Json& now) {
  std::set<std::string> keys;
  for (const Json* config : {&then, &now})
    for (const auto& [key, value] : config->items()) keys.insert(key);
  std::string text;
  for (const std::string& key : keys) {
    const auto value = [&](const Json& config) { return config.contains(key) ? json_line(config[key]) : "not there"; };
    if (value(then) != value(now))
      text += (text.empty() ? "" : "; ") + printable(key + " was " + value(then) + ", is " + value(now));
  }
  return text;
}

}  // namespace

BaseReference reference_to_base(const Session& session, std::string path, std::string hash) {
  BaseReference out{std::move(path), std::move(hash)};
  if (session.quant() == nullptr) return out;
  const QuantPlugin& plugin = session.quant()->plugin();
  out.quant = plugin.id();
  if (plugin.has_config()) out.quant_config = parse_json(plugin.config(), "quantization_config", ExitCode::kPlugin);
  return out;
}

void compare_quantization(const Session& session, const std::string& trained, const BaseReference& reference) {
  const BaseReference now = reference_to_base(session, reference.path, reference.hash);
  const std::string key = "the base weights are not stored as in training";
  if (now.quant != reference.quant)
    return counted_warning(key, trained + " was trained on weights that were " + stored_by(reference.quant) +
                                    ", and here they are " + stored_by(now.quant));
  if (!now.quant_config.is_object() || !reference.quant_config.is_object()) return;
  if (const std::string text = differences(reference.quant_config, now.quant_config); !text.empty())
    counted_warning(key, trained + " was trained on weights that were quantized differently: " + text);
}

}  // namespace chassis
