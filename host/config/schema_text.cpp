// Prints one paragraph per key: type, range, default, doc.
#include "host/config/schema_text.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"
#include "host/config/foreign.hpp"
#include "host/config/suggest.hpp"

namespace chassis {
namespace {

constexpr std::string_view kModelConfigKey = "model.config";

std::string heading(const TableSpec& table) {
  if (table.name.empty()) return "top level";
  return table.is_array ? "[[" + table.name + "]]" : "[" + table.name + "]";
}

std::string key_in(const TableSpec& table, const std::string& name) {
  return table.name.empty() ? name : table.name + "." + name;
}

// "integer, at least 1, default 1"
std::string facts(const OptionSpec& spec, const std::string& key) {
  const std::vector<std::string> choices = offered_choices(key, spec);
  std::string text = choices.empty() ? type_text(spec.type) : choices_text(choices);
  if (!spec.choices.empty() && spec.type == OptionType::kStringList) text = "a list of " + text;
  if (const std::string range = range_text(spec); !range.empty()) text += ", " + range;
  if (spec.required) text += ", required";
  if (spec.default_json.empty()) return text;
  const bool is_truth = !choices.empty() && (spec.default_json == "\"true\"" || spec.default_json == "\"false\"");
  return text + ", default " +
         (is_truth ? spec.default_json.substr(1, spec.default_json.size() - 2) : spec.default_json);
}

// `key` is the dotted name, `prefix` the part of it that is printed.
std::string option_text(const std::string& prefix, const std::string& key, const OptionSpec& spec) {
  return fmt::format("  {}{}\n      {}\n      {}\n", prefix, spec.name, facts(spec, key), spec.doc);
}

std::string plugin_text(const PluginDoc& plugin) {
  std::string out = fmt::format("\nplugin \"{}\" ({}): {}\n", plugin.name, plugin.kind, plugin.doc);
  if (plugin.options.empty()) out += "  no options\n";
  for (const OptionSpec& option : plugin.options) out += option_text("", option.name, option);
  return out;
}

// The keys of model.config, for each model plugin that takes any.
std::string config_text(const std::vector<PluginDoc>& plugins) {
  std::string out = "      Its keys are those of Hugging Face, as written in config.json of such a model.\n";
  for (const PluginDoc& plugin : plugins) {
    if (plugin.config.empty()) continue;
    out += fmt::format("\n  plugin \"{}\" reads, with these defaults\n", plugin.name);
    for (const auto& [name, value] : plugin.config) out += fmt::format("      {} = {}\n", name, value);
  }
  return out;
}

std::string table_text(const TableSpec& table, const std::vector<PluginDoc>& plugins) {
  std::string out = fmt::format("{}: {}\n", heading(table), table.doc);
  for (const OptionSpec& option : table.keys)
    if (!is_unavailable(key_in(table, option.name))) out += option_text("", key_in(table, option.name), option);
  if (table.slot == SlotForm::kNone) return out;
  const bool is_list = table.slot == SlotForm::kList;
  if (is_list) out += fmt::format("  options of a plugin go into [{}.NAME]\n", table.name);
  for (const PluginDoc& plugin : plugins) {
    if (plugin.kind == table.kind) out += plugin_text(plugin);
  }
  return out;
}

}  // namespace

std::string schema_text(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path) {
  const std::string key = without_indexes(path);
  std::string out;
  if (path.empty()) {
    for (const TableSpec& table : schema.tables)
      if (!is_unavailable(table.name)) out += (out.empty() ? "" : "\n") + table_text(table, {});
    return out + "\nOptions of plugins: chassis schema TABLE, such as chassis schema optimizer.\n";
  }
  std::vector<std::string> known;
  for (const Unavailable& entry : unavailable()) {
    if (entry.value.empty() && is_unavailable(key) && key.starts_with(entry.key))
      throw config_error(fmt::format("{} is not available in this version: {}", key, entry.instead));
  }
  for (const TableSpec& table : schema.tables) {
    if (is_unavailable(table.name)) continue;
    if (table.name == key) return table_text(table, plugins);
    const std::string prefix = table.name.empty() ? "" : table.name + ".";
    if (!table.name.empty()) known.push_back(table.name);
    for (const OptionSpec& option : table.keys) {
      if (is_unavailable(prefix + option.name)) continue;
      known.push_back(prefix + option.name);
      if (prefix + option.name != key) continue;
      out += option_text(prefix, key, option);
      if (key == kModelConfigKey) out += config_text(plugins);
    }
    if (table.slot == SlotForm::kNone) continue;
    for (const PluginDoc& plugin : plugins) {
      if (plugin.kind != table.kind) continue;
      for (const OptionSpec& option : plugin.options) {
        const bool is_list = table.slot == SlotForm::kList;
        const std::string name = prefix + (is_list ? plugin.name + "." : "") + option.name;
        known.push_back(name);
        if (name == key) {
          out += option_text(name.substr(0, name.size() - option.name.size()), name, option);
          out += fmt::format("      an option of plugin \"{}\"\n", plugin.name);
        }
      }
    }
  }
  if (!out.empty()) return out;
  // A key without its table: search all of them.
  for (const std::string& name : known) {
    const std::string leaf = name.substr(name.rfind('.') == std::string::npos ? 0 : name.rfind('.') + 1);
    if (leaf == key && leaf != name) out += schema_text(schema, plugins, name);
  }
  if (!out.empty()) return out;
  for (const PluginDoc& plugin : plugins) {
    known.push_back(plugin.name);
    if (plugin.name == key) out += (out.empty() ? "" : "\n") + plugin_text(plugin).substr(1);
  }
  if (!out.empty()) return out;
  Error error = config_error(fmt::format("there is no key, table or plugin '{}'", printable(path)));
  if (const ForeignKey* foreign = find_foreign_key(key)) {
    error.hint(fmt::format("known from {}: {}", foreign->trainer, foreign->answer));
  } else if (const std::string near = nearest(key, known); !near.empty()) {
    error.hint("did you mean '" + near + "'?");
  }
  throw error;
}

}  // namespace chassis
