// toml++ behind toml_file.hpp.
#include "host/config/toml_file.hpp"

#include <fmt/core.h>

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
      Value& added = value.children.emplace_back(convert(child, name, outside));
      added.name = key.str();
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

// The parser, and all that walks what it returns, go one call deeper with each level.
constexpr size_t kMaxBrackets = 32;  // open at a time; a dotted key has kMaxKeyParts

// Behind the string that opens at `start`, or at the end of the line where it is not closed, which the parser reports.
size_t end_of_string(std::string_view text, size_t start) {
  const char quote = text[start];
  const std::string triple(3, quote);
  const bool is_long = text.substr(start).starts_with(triple);
  for (size_t i = start + (is_long ? 3 : 1); i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (is_long ? text.substr(i).starts_with(triple) : text[i] == quote) {
      i += is_long ? 3 : 1;
      while (is_long && i < text.size() && text[i] == quote) ++i;  // quotes that belong to the text stand last
      return i;
    } else if (!is_long && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

void refuse_deep_nesting(std::string_view text, const std::string& name) {
  size_t num_open = 0, num_dots = 0, line = 1, line_start = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const size_t end = end_of_string(text, i);
      for (; i < end; ++i)
        if (text[i] == '\n') ++line, line_start = i + 1;
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++num_open;
    if ((c == ']' || c == '}') && num_open > 0) --num_open;
    if (c == '.') ++num_dots;
    if (std::string_view("[]{},=\n").find(c) != std::string_view::npos) num_dots = 0;
    if (num_open > kMaxBrackets || num_dots >= kMaxKeyParts) {
      const std::string what = num_open > kMaxBrackets
                                   ? fmt::format("lists and tables inside each other: at most {}", kMaxBrackets)
                                   : fmt::format("a key of many parts: at most {}", kMaxKeyParts);
      throw Error(ExitCode::kConfig, {name, static_cast<int>(line), static_cast<int>(i - line_start + 1)},
                  what + " are read");
    }
    if (c == '\n') ++line, line_start = i + 1;
    ++i;
  }
}

}  // namespace

Value parse_toml(std::string_view text, const std::string& name) {
  refuse_deep_nesting(text, name);
  try {
    return convert(toml::parse(text, std::string_view(name)), name, nullptr);
  } catch (const toml::parse_error& cause) {
    throw Error(ExitCode::kConfig, position(cause.source().begin, name),
                "not valid TOML: " + std::string(cause.description()));
  }
}

std::optional<Value> parse_toml_value(const std::string& text, const Origin& origin) {
  try {
    refuse_deep_nesting(text, "");
  } catch (const Error& cause) {
    throw Error(ExitCode::kConfig, origin.where, cause.message());
  }
  try {
    const toml::table table = toml::parse("value = " + text);
    if (table.size() != 1) return std::nullopt;
    return convert(*table.get("value"), "", &origin);
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

}  // namespace chassis
