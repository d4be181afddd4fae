// A value of the configuration tree, and where it came from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json_fwd.hpp"

namespace chassis {

struct Origin {
  enum class Kind { kFile, kOverride, kDefault, kPluginDefault };
  Kind kind = Kind::kDefault;
  SourcePosition where = {};  // kFile: position of the value; kOverride: the file is "command line 'a=b'"
  std::string plugin = {};    // kPluginDefault

  // "configs/a.toml:3:8", "command line 'run.seed=1'", "default", "default of adamw"
  std::string text() const;
  bool by_user() const { return kind == Kind::kFile || kind == Kind::kOverride; }
};

enum class ValueType { kBool, kInt, kFloat, kString, kArray, kTable, kTime };

struct TomlValue {
  ValueType type = ValueType::kTable;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string string;
  std::string name;             // in a table: the key
  std::vector<TomlValue> children;  // items of an array, or keys of a table in order of appearance
  Origin origin;
  SourcePosition key_where;
  std::string typed_text;  // from the command line: what was typed after "="

  bool is_table() const { return type == ValueType::kTable; }
  bool is_array() const { return type == ValueType::kArray; }
  const TomlValue* find(std::string_view key) const;
  TomlValue* find(std::string_view key);
  // Adds or replaces a key of a table.
  TomlValue& set(std::string_view key, TomlValue value);
  void erase(std::string_view key);
};

// The value of a dotted key, in which numbers index arrays: "data.train.0.path". NULL if there is none.
const TomlValue* find_value(const TomlValue& root, std::string_view key);
// The position of the key, or of the nearest enclosing table that is written down; `file` if none is.
SourcePosition position_of(const TomlValue& root, std::string_view key, const std::string& file);

// As the user would have typed it, in one line: 3, 0.1, "text", [1, 2], { a = 1 }.
std::string toml_text(const TomlValue& value);
// A key, quoted if it must be.
std::string toml_key(const std::string& key);
// The type of a value in words: "an integer", "a string", …
const char* type_text(ValueType type);
Json to_json(const TomlValue& value);
// Converts JSON without nulls, for defaults.
TomlValue from_json(const Json& json, const Origin& origin);
// Same type and content; origins are not compared.
bool same_value(const TomlValue& a, const TomlValue& b);

}  // namespace chassis
