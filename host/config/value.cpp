// The tree of values, and its two text forms: JSON and one-line TOML.
#include "host/config/value.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text).substr(at));
    const size_t num_bytes = std::max<size_t>(c.num_bytes, 1);
    if (c.code == '"' || c.code == '\\') {
      out += '\\';
      out += text[at];
    } else if (c.code == '\n') {
      out += "\\n";
    } else if (c.code == '\t') {
      out += "\\t";
    } else if (c.num_bytes > 0 && is_control(c.code)) {
      out += fmt::format("\\u{:04X}", c.code);
    } else {
      out.append(text, at, num_bytes);
    }
    at += num_bytes;
  }
  return out + '"';
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

const TomlValue* child_of(const TomlValue& parent, std::string_view part) {
  if (!parent.is_array()) return parent.find(part);
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  const bool valid = error == std::errc() && end == part.data() + part.size() && index < parent.children.size();
  return valid ? &parent.children[index] : nullptr;
}

}  // namespace

std::string Origin::text() const {
  switch (kind) {
    case Kind::kFile:
    case Kind::kOverride:
      return where.text();
    case Kind::kPluginDefault:
      return "default of " + plugin;
    case Kind::kDefault:
      break;
  }
  return "default";
}

const TomlValue* TomlValue::find(std::string_view key) const {
  if (!is_table()) return nullptr;
  const auto it =
      std::find_if(children.begin(), children.end(), [&](const TomlValue& child) { return child.name == key; });
  return it == children.end() ? nullptr : &*it;
}

TomlValue* TomlValue::find(std::string_view key) {
  return const_cast<TomlValue*>(static_cast<const TomlValue*>(this)->find(key));
}

TomlValue& TomlValue::set(std::string_view key, TomlValue value) {
  value.name = key;
  if (TomlValue* old = find(key)) return *old = std::move(value);
  return children.emplace_back(std::move(value));
}

void TomlValue::erase(std::string_view key) {
  std::erase_if(children, [&](const TomlValue& child) { return child.name == key; });
}

const TomlValue* find_value(const TomlValue& root, std::string_view key) {
  const TomlValue* node = &root;
  while (node != nullptr && !key.empty()) {
    const size_t dot = key.find('.');
    node = child_of(*node, key.substr(0, dot));
    key = dot == std::string_view::npos ? std::string_view() : key.substr(dot + 1);
  }
  return node;
}

SourcePosition position_of(const TomlValue& root, std::string_view key, const std::string& file) {
  for (;;) {
    const TomlValue* value = find_value(root, key);
    if (value != nullptr && value != &root && value->origin.by_user()) {
      return value->is_table() || value->is_array() ? value->key_where : value->origin.where;
    }
    const size_t dot = key.rfind('.');
    if (dot == std::string_view::npos) return {file, 0, 0};
    key = key.substr(0, dot);
  }
}

const char* type_text(ValueType type) {
  switch (type) {
    case ValueType::kBool:
      return "true or false";
    case ValueType::kInt:
      return "an integer";
    case ValueType::kFloat:
      return "a number with a decimal point";
    case ValueType::kString:
      return "a string";
    case ValueType::kArray:
      return "a list";
    case ValueType::kTable:
      return "a table";
    case ValueType::kTime:
      break;
  }
  return "a date or time";
}

std::string toml_key(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return bare ? key : quoted(key);
}

std::string toml_text(const TomlValue& value) {
  switch (value.type) {
    case ValueType::kBool:
      return value.boolean ? "true" : "false";
    case ValueType::kInt:
      return std::to_string(value.integer);
    case ValueType::kFloat:
      return float_text(value.number);
    case ValueType::kString:
      return quoted(value.string);
    case ValueType::kTime:
      return value.string;
    case ValueType::kArray:
    case ValueType::kTable:
      break;
  }
  std::string items;
  for (const TomlValue& child : value.children) {
    if (!items.empty()) items += ", ";
    items += value.is_table() ? toml_key(child.name) + " = " + toml_text(child) : toml_text(child);
  }
  if (value.is_array()) return "[" + items + "]";
  return items.empty() ? "{}" : "{ " + items + " }";
}

Json to_json(const TomlValue& value) {
  switch (value.type) {
    case ValueType::kBool:
      return value.boolean;
    case ValueType::kInt:
      return value.integer;
    case ValueType::kFloat:
      return value.number;
    case ValueType::kString:
    case ValueType::kTime:
      return value.string;
    case ValueType::kArray: {
      Json out = Json::array();
      for (const TomlValue& child : value.children) out.push_back(to_json(child));
      return out;
    }
    case ValueType::kTable:
      break;
  }
  Json out = Json::object();
  for (const TomlValue& child : value.children) out[child.name] = to_json(child);
  return out;
}

TomlValue from_json(const Json& json, const Origin& origin) {
  TomlValue value;
  value.origin = origin;
  if (json.is_boolean()) {
    value.type = ValueType::kBool;
    value.boolean = json.get<bool>();
  } else if (json.is_number_integer()) {
    value.type = ValueType::kInt;
    value.integer = json.get<int64_t>();
  } else if (json.is_number()) {
    value.type = ValueType::kFloat;
    value.number = json.get<double>();
  } else if (json.is_string()) {
    value.type = ValueType::kString;
    value.string = json.get<std::string>();
  } else if (json.is_array()) {
    value.type = ValueType::kArray;
    for (const Json& item : json) value.children.push_back(from_json(item, origin));
  } else {
    CHASSIS_CHECK(json.is_object(), "a default is not null");
    value.type = ValueType::kTable;
    for (const auto& [key, item] : json.items()) value.set(key, from_json(item, origin));
  }
  return value;
}

bool same_value(const TomlValue& a, const TomlValue& b) {
  if (a.type != b.type || a.children.size() != b.children.size()) return false;
  switch (a.type) {
    case ValueType::kBool:
      return a.boolean == b.boolean;
    case ValueType::kInt:
      return a.integer == b.integer;
    case ValueType::kFloat:
      return a.number == b.number;
    case ValueType::kString:
    case ValueType::kTime:
      return a.string == b.string;
    case ValueType::kArray:
      return std::equal(a.children.begin(), a.children.end(), b.children.begin(), same_value);
    case ValueType::kTable:
      break;
  }
  return std::all_of(a.children.begin(), a.children.end(), [&](const TomlValue& child) {
    const TomlValue* other = b.find(child.name);
    return other != nullptr && same_value(child, *other);
  });
}

}  // namespace chassis
