// Prints one paragraph per key: type, range, default, doc.
#include "host/config/schema_text.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/config/foreign.hpp"
#include "host/config/keys.hpp"
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
  const Change change = change_of(host_schema(), key);
  const std::string last =
      change == Change::kRestart ? "" : fmt::format(", may change while a run trains ({})", to_text(change));
  if (spec.default_json.empty()) return text + last;
  const bool is_truth = !choices.empty() && (spec.default_json == "\"true\"" || spec.default_json == "\"false\"");
  return text + ", default " +
         (is_truth ? spec.default_json.substr(1, spec.default_json.size() - 2) : spec.default_json) + last;
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

// A part of the schema that a path names: a table, a key (of a plugin if there is one), or a plugin.
struct Found {
  const TableSpec* table = nullptr;
  const OptionSpec* option = nullptr;
  const PluginDoc* plugin = nullptr;
  std::string key = {};  // dotted
};

std::vector<Found> all_tables(const Schema& schema) {
  std::vector<Found> found;
  for (const TableSpec& table : schema.tables)
    if (!is_unavailable(table.name)) found.push_back({.table = &table});
  return found;
}

// All keys, those of plugins included, with their dotted names.
std::vector<Found> all_keys(const Schema& schema, const std::vector<PluginDoc>& plugins) {
  std::vector<Found> found;
  for (const Found& entry : all_tables(schema)) {
    const TableSpec& table = *entry.table;
    for (const OptionSpec& option : table.keys)
      if (const std::string key = key_in(table, option.name); !is_unavailable(key))
        found.push_back({.option = &option, .key = key});
    if (table.slot == SlotForm::kNone) continue;
    for (const PluginDoc& plugin : plugins) {
      if (plugin.kind != table.kind) continue;
      const std::string inside = table.slot == SlotForm::kList ? plugin.name + "." : "";
      for (const OptionSpec& option : plugin.options)
        found.push_back({.option = &option, .plugin = &plugin, .key = key_in(table, inside + option.name)});
    }
  }
  return found;
}

void refuse_unavailable(const std::string& key) {
  for (const Unavailable& entry : unavailable())
    if (entry.value.empty() && is_unavailable(key) && key.starts_with(entry.key))
      throw config_error(fmt::format("{} is not available in this version: {}", key, entry.instead));
}

[[noreturn]] void throw_unknown(const std::string& path, const std::string& key,
                                const std::vector<std::string>& known) {
  Error error = config_error(fmt::format("there is no key, table or plugin '{}'", printable(path)));
  if (const ForeignKey* foreign = find_foreign_key(key)) {
    error.hint(fmt::format("known from {}: {}", foreign->trainer, foreign->answer));
  } else if (const std::string near = nearest(key, known); !near.empty()) {
    error.hint("did you mean '" + near + "'?");
  }
  throw error;
}

// A table; else the keys of this dotted name; else those of this name in any table; else plugins of this name or table.
std::vector<Found> find_parts(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path) {
  if (path.empty()) return all_tables(schema);
  const std::string key = without_indexes(path);
  refuse_unavailable(key);
  const std::vector<Found> tables = all_tables(schema), keys = all_keys(schema, plugins);
  for (const Found& entry : tables)
    if (entry.table->name == key) return {entry};
  std::vector<Found> found;
  for (const Found& entry : keys)
    if (entry.key == key) found.push_back(entry);
  if (!found.empty()) return found;
  for (const Found& entry : keys)
    if (entry.key.ends_with("." + key) && key.find('.') == std::string::npos) found.push_back(entry);
  if (!found.empty()) return found;
  const auto table_of = [&](const PluginDoc& plugin) {  // such as log.webpage; empty if it has none of its own
    for (const Found& entry : tables)
      if (entry.table->slot == SlotForm::kList && entry.table->kind == plugin.kind)
        return key_in(*entry.table, plugin.name);
    return std::string();
  };
  for (const PluginDoc& plugin : plugins)
    if (plugin.name == key || table_of(plugin) == key) found.push_back({.plugin = &plugin});
  if (!found.empty()) return found;
  std::vector<std::string> known;
  for (const Found& entry : tables)
    if (!entry.table->name.empty()) known.push_back(entry.table->name);
  for (const Found& entry : keys) known.push_back(entry.key);
  for (const PluginDoc& plugin : plugins) {
    known.push_back(plugin.name);
    if (std::string table = table_of(plugin); !table.empty()) known.push_back(std::move(table));
  }
  throw_unknown(path, key, known);
}

Json key_json(const std::string& key, const OptionSpec& spec) {
  Json out = {{"key", key}};
  out.update(option_json(spec));
  out["change"] = to_text(change_of(host_schema(), key));
  out["choices"] = offered_choices(key, spec);
  return out;
}

// The options of a plugin; `prefix` is that of their keys in the configuration.
Json plugin_json(const PluginDoc& plugin, const std::string& prefix = "") {
  Json options = Json::array();
  for (const OptionSpec& option : plugin.options)
    options.push_back(prefix.empty() ? option_json(option) : key_json(prefix + option.name, option));
  return {{"plugin", plugin.name}, {"kind", plugin.kind}, {"doc", plugin.doc}, {"options", std::move(options)}};
}

Json table_json(const TableSpec& table, const std::vector<PluginDoc>& plugins) {
  Json keys = Json::array(), options = Json::array();
  for (const OptionSpec& option : table.keys)
    if (const std::string key = key_in(table, option.name); !is_unavailable(key)) keys.push_back(key_json(key, option));
  for (const PluginDoc& plugin : plugins) {
    if (table.slot == SlotForm::kNone || plugin.kind != table.kind) continue;
    const std::string inside = table.slot == SlotForm::kList ? plugin.name + "." : "";
    options.push_back(plugin_json(plugin, key_in(table, inside)));
  }
  return {{"table", table.name}, {"array", table.is_array}, {"kind", table.kind.empty() ? Json() : Json(table.kind)},
          {"doc", table.doc},    {"keys", std::move(keys)}, {"plugins", std::move(options)}};
}

}  // namespace

std::string schema_text(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path) {
  std::string out;
  for (const Found& found : find_parts(schema, plugins, path)) {
    if (found.table != nullptr) {
      out += (out.empty() ? "" : "\n") + table_text(*found.table, path.empty() ? std::vector<PluginDoc>{} : plugins);
    } else if (found.option != nullptr) {
      const std::string prefix = found.key.substr(0, found.key.size() - found.option->name.size());
      out += option_text(prefix, found.key, *found.option);
      if (found.plugin != nullptr) out += fmt::format("      an option of plugin \"{}\"\n", found.plugin->name);
      if (found.key == kModelConfigKey) out += config_text(plugins);
    } else {
      out += (out.empty() ? "" : "\n") + plugin_text(*found.plugin).substr(1);
    }
  }
  return path.empty() ? out + "\nOptions of plugins: chassis schema TABLE, such as chassis schema optimizer.\n" : out;
}

Json schema_json(const Schema& schema, const std::vector<PluginDoc>& plugins, const std::string& path) {
  Json tables = Json::array(), keys = Json::array(), members = Json::array();
  for (const Found& found : find_parts(schema, plugins, path)) {
    if (found.table != nullptr) {
      tables.push_back(table_json(*found.table, plugins));
    } else if (found.option != nullptr) {
      Json key = key_json(found.key, *found.option);
      if (found.plugin != nullptr) key["plugin"] = found.plugin->name;
      for (const PluginDoc& plugin : plugins)
        for (const auto& [name, value] : plugin.config)
          if (found.key == kModelConfigKey) key["models"][plugin.name][name] = Json::parse(value, nullptr, false);
      keys.push_back(std::move(key));
    } else {
      members.push_back(plugin_json(*found.plugin));
    }
  }
  return {{"tables", std::move(tables)}, {"keys", std::move(keys)}, {"plugins", std::move(members)}};
}

}  // namespace chassis
