// Fills members of Settings from a checked tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/choices.hpp"
#include "host/config/option.hpp"
#include "host/config/settings.hpp"
#include "host/config/value.hpp"

namespace chassis {

// The type of the keys that a Setting<T> holds.
template <class T>
inline constexpr OptionType kOptionType = OptionType::kString;
template <>
inline constexpr OptionType kOptionType<bool> = OptionType::kBool;
template <>
inline constexpr OptionType kOptionType<int64_t> = OptionType::kInt;
template <>
inline constexpr OptionType kOptionType<double> = OptionType::kFloat;
template <>
inline constexpr OptionType kOptionType<std::vector<std::string>> = OptionType::kStringList;
template <>
inline constexpr OptionType kOptionType<std::vector<int64_t>> = OptionType::kIntList;
template <>
inline constexpr OptionType kOptionType<TomlValue> = OptionType::kTable;

// Each fills `out`, and returns whether `value` has its type.
bool convert(const TomlValue& value, bool& out);
bool convert(const TomlValue& value, int64_t& out);
bool convert(const TomlValue& value, double& out);
bool convert(const TomlValue& value, std::string& out);
bool convert(const TomlValue& value, std::vector<std::string>& out);
bool convert(const TomlValue& value, std::vector<int64_t>& out);
bool convert(const TomlValue& value, TomlValue& out);
bool convert(const TomlValue& value, ResumeFrom& out);
template <ChoiceType T>
bool convert(const TomlValue& value, T& out) {
  const std::optional<T> choice = value.type == ValueType::kString ? choice_from<T>(value.string) : std::nullopt;
  out = choice.value_or(T{});
  return choice.has_value();
}

// A key that was read, and the member that holds it.
struct ReadKey {
  std::string key;
  OptionType type = OptionType::kString;
  const void* member = nullptr;
};

// Reads the keys of one table of the tree.
class SettingsReader {
 public:
  struct Source {
    const TomlValue& root;
    const std::string& file;                // the position of keys that no file sets
    std::shared_ptr<const Error> findings;  // the problems that loading found, or NULL
    std::vector<ReadKey>* read;             // the keys are appended to it, unless it is NULL
  };
  // At the top level. `source` outlives the reader.
  explicit SettingsReader(const Source& source) : source_(source) {}

  // The reader of a table inside this one.
  SettingsReader table(ConfigEntry& table, std::string_view name) const;

  // Calls `fill` with the reader and the struct of each table.
  template <class Table, class Fill>
  void tables(SettingTables<Table>& tables, std::string_view name, const Fill& fill) const {
    const SettingsReader inside = table(tables, name);
    const TomlValue* array = find_value(source_.root, tables.key());
    tables.tables_.resize(array != nullptr && array->is_array() ? array->children.size() : 0);
    for (size_t i = 0; i < tables.size(); ++i)
      fill(inside.table(tables.tables_[i], std::to_string(i)), tables.tables_[i]);
  }

  template <class T>
  void read(Setting<T>& setting, std::string_view name) const {
    const TomlValue* value = locate_setting(setting, name, kOptionType<T>);
    setting.is_set_ = value != nullptr && convert(*value, setting.value_);
    if (setting.is_set_) locate_items(*value, setting, "");
  }

 private:
  ConfigEntry& locate(ConfigEntry& entry, std::string_view name) const;
  // The value of the key; NULL if the tree has none.
  const TomlValue* locate_setting(SettingEntry& setting, std::string_view name, OptionType type) const;
  void locate_items(const TomlValue& value, SettingEntry& setting, const std::string& prefix) const;

  const Source& source_;
  std::string prefix_;
};

}  // namespace chassis
