// The plugins that a configuration asks for, and their options, which are checked when the plugin is loaded.
#include <fmt/core.h>

#include <algorithm>

#include "host/base/json.hpp"
#include "host/config/config.hpp"
#include "host/config/plugin_name.hpp"

namespace chassis {

std::vector<PluginSlot> Config::plugin_slots() const {
  std::vector<PluginSlot> slots;
  const auto add_one = [&](const TableSpec& spec, const std::string& key) {
    const TomlValue* name = find(joined_key(key, "plugin"));
    if (name != nullptr) {
      slots.push_back({key, spec.name, spec.kind, name->string, position(joined_key(key, "plugin"))});
    } else if (spec.name == "model" || set_by_user(key)) {
      slots.push_back({key, spec.name, spec.kind, "", position(key)});
    }
  };
  for (const TableSpec& spec : schema_->tables) {
    if (is_unavailable(spec.name)) continue;
    if (spec.slot == SlotForm::kOne && spec.is_array) {
      for (size_t i = 0; i < count(spec.name); ++i) add_one(spec, joined_key(spec.name, std::to_string(i)));
    } else if (spec.slot == SlotForm::kOne) {
      add_one(spec, spec.name);
    } else if (spec.slot == SlotForm::kList) {
      const std::string list_key = joined_key(spec.name, spec.list_key);
      for (const std::string& name : get_list(list_key)) {
        if (std::ranges::find(spec.built_in, name) != spec.built_in.end()) continue;
        slots.push_back({joined_key(spec.name, std::string(without_version(name))), spec.name, spec.kind, name,
                         position(list_key)});
      }
    }
  }
  return slots;
}

void Config::check_plugin_options(const std::string& slot_key, const std::string& plugin,
                                  const std::vector<OptionSpec>& options) {
  const TableSpec* spec = schema_->find(without_indexes(slot_key));
  const bool in_list = spec == nullptr;  // [kernels.NAME] holds only options
  if (!in_list) {
    for (const OptionSpec& option : options) {
      if (spec->find(option.name) == nullptr) continue;
      throw plugin_error(fmt::format("plugin '{}' has an option '{}', which is a key of the host in [{}]", plugin,
                                     option.name, spec->name));
    }
  }
  TomlValue new_table;  // used if the slot has no table
  TomlValue* table = find(slot_key);
  if (table == nullptr) table = &new_table;
  CHASSIS_CHECK(table->is_table(), "the slot '" + slot_key + "' is a table");

  std::vector<std::string> known = offered_keys(slot_key, options);
  if (!in_list) {
    for (std::string& host_key : offered_keys(spec->name, spec->keys)) known.push_back(std::move(host_key));
  }
  std::set<std::string> names;
  for (const OptionSpec& option : options) names.insert(option.name);
  checked_slots_[slot_key] = names;
  for (size_t i = 0; i < table->children.size(); ++i) {
    TomlValue& child = table->children[i];
    if (!in_list && spec->find(child.name) != nullptr) continue;
    const std::string key = joined_key(slot_key, child.name);
    const auto option =
        std::find_if(options.begin(), options.end(), [&](const OptionSpec& o) { return o.name == child.name; });
    if (option == options.end()) {
      unknown_key(child, key, known);
    } else if (!check_value(child, *option, key)) {
      table->children.erase(table->children.begin() + static_cast<ptrdiff_t>(i--));
    }
  }
  for (const OptionSpec& option : options) {
    const std::string key = joined_key(slot_key, option.name);
    if (table->find(option.name) != nullptr || invalid_.contains(key)) continue;
    if (!option.default_json.empty()) {
      TomlValue value =
          from_json(parse_json(option.default_json, "default of " + plugin + "." + option.name, ExitCode::kPlugin),
                    Origin{Origin::Kind::kPluginDefault, {}, plugin});
      const size_t before = problems_.size();
      if (!check_value(value, option, key)) {
        std::string text = problems_.back().text;
        problems_.resize(before);
        throw plugin_error("the default of an option of plugin '" + plugin + "' is wrong: " + text);
      }
      table->set(option.name, std::move(value));
    } else if (option.required) {
      invalid_.insert(key);
      problems_.push_back(
          {position(slot_key), fmt::format("{} is missing: plugin '{}' needs it: {}", key, plugin, option.doc)});
    }
  }
  if (new_table.children.empty()) return;
  const size_t dot = slot_key.rfind('.');
  TomlValue* parent = dot == std::string::npos ? &root_ : find(slot_key.substr(0, dot));
  CHASSIS_CHECK(parent != nullptr && parent->is_table(), "the slot '" + slot_key + "' is in the configuration");
  parent->set(slot_key.substr(dot == std::string::npos ? 0 : dot + 1), std::move(new_table));
}

Json Config::plugin_options(const std::string& slot_key) const {
  const auto checked = checked_slots_.find(slot_key);
  CHASSIS_CHECK(checked != checked_slots_.end(), "the options of '" + slot_key + "' are checked before they are used");
  Json out = Json::object();
  for (const std::string& name : checked->second) {
    if (const TomlValue* value = find(slot_key + "." + name)) out[name] = to_json(*value);
  }
  return out;
}

Origin Config::plugin_option_origin(const std::string& slot_key, const std::string& option) const {
  const TomlValue* value = find(slot_key + "." + option);
  return value != nullptr ? value->origin : Origin{};
}

std::vector<std::string> Config::option_tables(std::string_view table) const {
  std::vector<std::string> names;
  for (const TomlValue& child : at(table, ValueType::kTable).children)
    if (child.is_table()) names.push_back(child.name);
  return names;
}

}  // namespace chassis
