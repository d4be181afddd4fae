// The rows of the tables in keys.cpp. A row has all that the program knows of a key: its name, the member of Settings
// that it fills, its default, range and documentation. Type and choices are those of the member.
#pragma once

#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "host/config/choices.hpp"
#include "host/config/option.hpp"
#include "host/config/schema.hpp"
#include "host/config/settings.hpp"
#include "host/config/settings_reader.hpp"

namespace chassis::rows {

// A key of the struct `Table`.
template <class Table>
struct KeyRow {
  OptionSpec spec;
  std::function<void(const SettingsReader&, Table&)> read;

  KeyRow(OptionSpec s, std::function<void(const SettingsReader&, Table&)> r) : spec(std::move(s)), read(std::move(r)) {}
  // A member of a base class.
  template <class Base>
  requires(std::derived_from<Table, Base> && !std::same_as<Table, Base>) KeyRow(KeyRow<Base> row)
      : spec(std::move(row.spec)), read(std::move(row.read)) {}
};

// A table of the configuration.
struct TableRows {
  TableSpec spec;
  std::function<void(const SettingsReader&, Settings&)> read;
};

// `get` is a pointer to a member of type Setting<T>, or a function that returns one of them.
template <class Table, class T, class Get>
KeyRow<Table> key_row(std::string name, Get get, std::string preset_json, std::string doc) {
  OptionSpec spec{.name = name, .type = kOptionType<T>, .default_json = std::move(preset_json), .doc = std::move(doc)};
  return {std::move(spec), [name = std::move(name), get](const SettingsReader& in, Table& table) {
            in.read(std::invoke(get, table), name);
          }};
}

template <class Table>
KeyRow<Table> within(KeyRow<Table> row, std::optional<double> min, std::optional<double> max) {
  row.spec.min = min;
  row.spec.max = max;
  return row;
}
template <class Table>
KeyRow<Table> required(KeyRow<Table> row) {
  row.spec.required = true;
  return row;
}
template <class Table>
KeyRow<Table> hot(KeyRow<Table> row) {
  row.spec.change = Change::kHot;
  return row;
}
template <class Table>
KeyRow<Table> swapped(KeyRow<Table> row) {
  row.spec.change = Change::kSwap;
  return row;
}
template <class Table>
KeyRow<Table> path(KeyRow<Table> row) {
  row.spec.is_path = true;
  return row;
}

template <class Table>
KeyRow<Table> flag(std::string name, Setting<bool> Table::*member, std::optional<bool> preset, std::string doc) {
  std::string preset_json = preset ? (*preset ? "true" : "false") : "";
  return key_row<Table, bool>(std::move(name), member, std::move(preset_json), std::move(doc));
}
template <class Table>
KeyRow<Table> integer(std::string name, Setting<int64_t> Table::*member, std::string preset, double min,
                      std::optional<double> max, std::string doc) {
  return within(key_row<Table, int64_t>(std::move(name), member, std::move(preset), std::move(doc)), min, max);
}
template <class Table>
KeyRow<Table> number(std::string name, Setting<double> Table::*member, std::string preset, double min,
                     std::optional<double> max, std::string doc) {
  return within(key_row<Table, double>(std::move(name), member, std::move(preset), std::move(doc)), min, max);
}
template <class Table>
KeyRow<Table> text(std::string name, Setting<std::string> Table::*member, std::string preset_json, std::string doc) {
  return key_row<Table, std::string>(std::move(name), member, std::move(preset_json), std::move(doc));
}
template <class Table>
KeyRow<Table> list(std::string name, SettingList Table::*member, std::string preset_json, std::string doc) {
  return key_row<Table, std::vector<std::string>>(std::move(name), member, std::move(preset_json), std::move(doc));
}
template <class Table>
KeyRow<Table> integers(std::string name, Setting<std::vector<int64_t>> Table::*member, std::string preset_json,
                       double min, std::string doc) {
  return within(key_row<Table, std::vector<int64_t>>(std::move(name), member, std::move(preset_json), std::move(doc)),
                min, std::nullopt);
}
template <class Table>
KeyRow<Table> table(std::string name, Setting<TomlValue> Table::*member, std::string preset_json, std::string doc) {
  return key_row<Table, TomlValue>(std::move(name), member, std::move(preset_json), std::move(doc));
}
template <class Table>
KeyRow<Table> patterns(std::string name, SettingList Table::*member, std::string doc) {
  KeyRow<Table> row = list(std::move(name), member, "[]", std::move(doc));
  row.spec.is_pattern = true;
  return row;
}
template <class Table>
KeyRow<Table> pattern(std::string name, Setting<std::string> Table::*member, std::string doc) {
  KeyRow<Table> row = text(std::move(name), member, "", std::move(doc));
  row.spec.is_pattern = true;
  return row;
}
template <ChoiceType T, class Table>
KeyRow<Table> choice(std::string name, Setting<T> Table::*member, std::type_identity_t<std::optional<T>> preset,
                     std::string doc) {
  std::string preset_json = preset ? "\"" + std::string(to_text(*preset)) + "\"" : "";
  KeyRow<Table> row = key_row<Table, T>(std::move(name), member, std::move(preset_json), std::move(doc));
  row.spec.choices.assign(kChoiceNames<T>.begin(), kChoiceNames<T>.end());
  return row;
}
// A text that is one of the names.
template <class Table>
KeyRow<Table> one_of(std::string name, Setting<std::string> Table::*member, const std::string& preset,
                     std::vector<std::string> names, std::string doc) {
  KeyRow<Table> row = text(std::move(name), member, "\"" + preset + "\"", std::move(doc));
  row.spec.choices = std::move(names);
  return row;
}
template <class Table>
KeyRow<Table> model_directory(Setting<std::string> Table::*member, std::string doc) {
  KeyRow<Table> row = path(text("path", member, "", std::move(doc)));
  row.spec.may_be_hub = true;
  return row;
}
// Required if there is no preset.
inline KeyRow<PluginTable> plugin(const std::string& preset, std::string doc) {
  KeyRow<PluginTable> row =
      text("plugin", &PluginTable::plugin, preset.empty() ? "" : "\"" + preset + "\"", std::move(doc));
  row.spec.required = preset.empty();
  return row;
}

// `get` is a pointer to the member of Settings that holds the table or tables, or a function that returns it.
template <class Table, class Get>
TableRows table_rows(TableSpec spec, Get get, std::vector<KeyRow<Table>> keys) {
  using Member = std::remove_cvref_t<std::invoke_result_t<Get, Settings&>>;
  constexpr bool kIsTopLevel = std::is_same_v<Member, Settings>;
  constexpr bool kIsArray = !std::is_same_v<Member, Table>;
  spec.is_array = kIsArray;
  for (const KeyRow<Table>& key : keys) spec.keys.push_back(key.spec);
  const std::string name = spec.name;
  const auto read = [name, get, keys = std::move(keys)](const SettingsReader& in, Settings& settings) {
    const auto fill = [&keys](const SettingsReader& inside, Table& one) {
      for (const KeyRow<Table>& key : keys) key.read(inside, one);
    };
    Member& member = std::invoke(get, settings);
    if constexpr (kIsTopLevel)
      fill(in, member);
    else if constexpr (kIsArray)
      in.tables(member, name, fill);
    else
      fill(in.table(member, name), member);
  };
  return {std::move(spec), read};
}

}  // namespace chassis::rows
