// toml++ behind toml_file.hpp.
#include "host/config/toml_file.hpp"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace chassis {
namespace {

SourcePosition position(const toml::source_position& at, const std::string& name) {
  return {name, static_cast<int>(at.line), static_cast<int>(at.column)};
}

template <class Time>
std::string time_text(const Time& time) {
  std::ostringstream out;
  out << time;
  return out.str();
}

// `outside` replaces the origins by one of another kind than kFile.
Value convert(const toml::node& node, const std::string& name, const Origin* outside) {
  Value value;
  value.origin = outside ? *outside : Origin{Origin::Kind::kFile, position(node.source().begin, name)};
  value.key_where = value.origin.where;
  if (const auto* table = node.as_table()) {
    value.type = ValueType::kTable;
    for (const auto& [key, child] : *table) {
      Value& added = value.set(key.str(), convert(child, name, outside));
      if (!outside) added.key_where = position(key.source().begin, name);
    }
    // The parser sorts keys; people expect theirs in order.
    std::stable_sort(value.children.begin(), value.children.end(), [](const Value& a, const Value& b) {
      return std::pair(a.key_where.line, a.key_where.column) < std::pair(b.key_where.line, b.key_where.column);
    });
  } else if (const auto* array = node.as_array()) {
    value.type = ValueType::kArray;
    for (const auto& child : *array) value.children.push_back(convert(child, name, outside));
  } else if (const auto* text = node.as_string()) {
    value.type = ValueType::kString;
    value.string = text->get();
  } else if (const auto* integer = node.as_integer()) {
    value.type = ValueType::kInt;
    value.integer = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    value.type = ValueType::kFloat;
    value.number = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value.type = ValueType::kBool;
    value.boolean = boolean->get();
  } else {
    value.type = ValueType::kTime;
    if (const auto* date = node.as_date()) value.string = time_text(date->get());
    if (const auto* time = node.as_time()) value.string = time_text(time->get());
    if (const auto* both = node.as_date_time()) value.string = time_text(both->get());
  }
  return value;
}

}  // namespace

Value parse_toml(std::string_view text, const std::string& name) {
  try {
    return convert(toml::parse(text, std::string_view(name)), name, nullptr);
  } catch (const toml::parse_error& cause) {
    throw Error(ExitCode::kConfig, position(cause.source().begin, name),
                "not valid TOML: " + std::string(cause.description()));
  }
}

std::optional<Value> parse_toml_value(const std::string& text, const Origin& origin) {
  try {
    const toml::table table = toml::parse("value = " + text);
    if (table.size() != 1) return std::nullopt;
    return convert(*table.get("value"), "", &origin);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace chassis
