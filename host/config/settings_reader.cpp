// Conversions of values, and the positions of keys and of their items.
#include "host/config/settings_reader.hpp"

namespace chassis {

bool convert(const TomlValue& value, bool& out) {
  out = value.boolean;
  return value.type == ValueType::kBool;
}

bool convert(const TomlValue& value, int64_t& out) {
  out = value.integer;
  return value.type == ValueType::kInt;
}

bool convert(const TomlValue& value, double& out) {
  out = value.type == ValueType::kInt ? static_cast<double>(value.integer) : value.number;
  return value.type == ValueType::kFloat || value.type == ValueType::kInt;
}

bool convert(const TomlValue& value, std::string& out) {
  out = value.string;
  return value.type == ValueType::kString;
}

bool convert(const TomlValue& value, std::vector<std::string>& out) {
  for (const TomlValue& item : value.children) out.push_back(item.string);
  return value.is_array();
}

bool convert(const TomlValue& value, std::vector<int64_t>& out) {
  for (const TomlValue& item : value.children) out.push_back(item.integer);
  return value.is_array();
}

bool convert(const TomlValue& value, TomlValue& out) {
  out = value;
  return value.is_table();
}

bool convert(const TomlValue& value, ResumeFrom& out) {
  out = {choice_from<Resume>(value.string), value.string};
  return value.type == ValueType::kString;
}

SettingsReader SettingsReader::table(ConfigEntry& table, std::string_view name) const {
  SettingsReader inside(source_);
  inside.prefix_ = locate(table, name).key() + ".";
  return inside;
}

ConfigEntry& SettingsReader::locate(ConfigEntry& entry, std::string_view name) const {
  entry.key_ = prefix_ + std::string(name);
  entry.where_ = position_of(source_.root, entry.key_, source_.file);
  const TomlValue* value = find_value(source_.root, entry.key_);
  entry.by_user_ = value != nullptr && value->origin.by_user();
  return entry;
}

const TomlValue* SettingsReader::locate_setting(SettingEntry& setting, std::string_view name, OptionType type) const {
  locate(setting, name);
  setting.findings_ = source_.findings;
  if (source_.read != nullptr) source_.read->push_back({setting.key(), type, &setting});
  return find_value(source_.root, setting.key());
}

void SettingsReader::locate_items(const TomlValue& value, SettingEntry& setting, const std::string& prefix) const {
  for (size_t i = 0; i < value.children.size(); ++i) {
    const TomlValue& child = value.children[i];
    const std::string item = prefix + (value.is_array() ? std::to_string(i) : child.name);
    setting.items_[item] = position_of(source_.root, setting.key_of(item), source_.file);
    locate_items(child, setting, item + ".");
  }
}

}  // namespace chassis
