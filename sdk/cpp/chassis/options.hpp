// Options: declared once with default, range and doc, read by type.
#pragma once

#include <charconv>
#include <deque>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "chassis/host.hpp"
#include "chassis/service/options.h"

CHASSIS_SDK_BEGIN

inline std::string to_json(bool value) { return value ? "true" : "false"; }
inline std::string to_json(int64_t value) { return std::to_string(value); }
inline std::string to_json(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";  // stays a float in TOML
  return text;
}
inline std::string to_json(std::string_view value) {
  std::string out = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", c);
      out += buffer;
    } else {
      out += c;
    }
  }
  return out + '"';
}
template <typename T>
std::string to_json(const std::vector<T>& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? ", " : "") + to_json(value);
  return out + "]";
}

template <typename T>
constexpr uint32_t option_type() {
  if constexpr (std::is_same_v<T, bool>) return CHASSIS_OPTION_BOOL;
  if constexpr (std::is_same_v<T, int64_t>) return CHASSIS_OPTION_INT;
  if constexpr (std::is_same_v<T, double>) return CHASSIS_OPTION_FLOAT;
  if constexpr (std::is_same_v<T, std::string>) return CHASSIS_OPTION_STRING;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return CHASSIS_OPTION_STRING_LIST;
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return CHASSIS_OPTION_INT_LIST;
  if constexpr (std::is_same_v<T, std::vector<double>>) return CHASSIS_OPTION_FLOAT_LIST;
  return 0;
}

class Option {
 public:
  Option(uint32_t type, std::string_view name, std::string default_json)
      : type_(type), name_(name), default_json_(std::move(default_json)) {}

  // For a number, or every item of a list of numbers; both ends are allowed.
  Option& range(double min, double max) {
    min_ = min, max_ = max, has_range_ = true;
    return *this;
  }
  Option& choices(std::initializer_list<std::string_view> choices) {
    choices_.assign(choices.begin(), choices.end());
    return *this;
  }
  // One line.
  Option& doc(std::string_view doc) {
    doc_ = doc;
    return *this;
  }

 private:
  friend class Options;
  uint32_t type_;
  std::string name_, default_json_, doc_;
  double min_ = 0, max_ = 0;
  bool has_range_ = false;
  std::vector<std::string> choices_;
};

// An option with a default: option("eps", 1e-8).range(0, 1).doc("…").
inline Option option(std::string_view name, bool value) { return {CHASSIS_OPTION_BOOL, name, to_json(value)}; }
inline Option option(std::string_view name, int value) { return {CHASSIS_OPTION_INT, name, to_json(int64_t{value})}; }
inline Option option(std::string_view name, int64_t value) { return {CHASSIS_OPTION_INT, name, to_json(value)}; }
inline Option option(std::string_view name, double value) { return {CHASSIS_OPTION_FLOAT, name, to_json(value)}; }
inline Option option(std::string_view name, const char* value) {
  return {CHASSIS_OPTION_STRING, name, to_json(std::string_view(value))};
}
template <typename T>
Option option(std::string_view name, const std::vector<T>& values) {
  return {option_type<std::vector<T>>(), name, to_json(values)};
}
// An option that the user must set: required<int64_t>("rank").
template <typename T>
Option required(std::string_view name) {
  return {option_type<T>(), name, ""};
}
// A TOML table, read as JSON text.
inline Option table(std::string_view name) { return {CHASSIS_OPTION_TABLE, name, "{}"}; }

// The schema of a member; constant.
class Options {
 public:
  Options() = default;
  Options(std::initializer_list<Option> options) {
    for (const Option& option : options) options_.push_back(option);
    for (const Option& o : options_) {
      auto& choices = choices_.emplace_back();
      for (const auto& choice : o.choices_) choices.push_back(str(choice));
      table_.push_back({sizeof(chassis_option_t), o.type_, str(o.name_), str(o.default_json_), str(o.doc_), o.min_,
                        o.max_, o.has_range_, static_cast<uint32_t>(choices.size()), choices.data()});
    }
  }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  const std::vector<chassis_option_t>& schema() const noexcept { return table_; }

 private:
  std::deque<Option> options_;
  std::deque<std::vector<chassis_str_t>> choices_;
  std::vector<chassis_option_t> table_;
};

// Items of a flat JSON list, strings without their quotes; for lists that the host has already checked.
inline std::vector<std::string> json_items(std::string_view json) {
  std::vector<std::string> items;
  bool quoted = false, any = false;
  std::string item;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (quoted) {
      if (c == '"') {
        quoted = false;
      } else if (c == '\\' && i + 1 < json.size()) {
        const char escaped = json[++i];
        if (escaped == 'u') throw Failure(CHASSIS_UNIMPLEMENTED, "\\u escapes in lists of strings are not supported");
        item += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
      } else {
        item += c;
      }
    } else if (c == '"') {
      quoted = any = true;
    } else if (c == ',' || c == ']') {
      if (any) items.push_back(std::move(item));
      item.clear(), any = false;
    } else if (c != '[' && c != ' ' && c != '\n' && c != '\t') {
      item += c, any = true;
    }
  }
  return items;
}

// [control] The value of an option in the schema: option_value<double>(host, "eps").
template <typename T>
T option_value(const Host& host, std::string_view name) {
  const auto& options = host.service<chassis_options_t>();
  if constexpr (std::is_same_v<T, bool>) {
    uint32_t value = 0;
    host.check(options.get_bool(&options, str(name), &value));
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    int64_t value = 0;
    host.check(options.get_int(&options, str(name), &value));
    return static_cast<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    double value = 0;
    host.check(options.get_float(&options, str(name), &value));
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    chassis_str_t value{};
    host.check(options.get_string(&options, str(name), &value));
    return std::string(text_of(value));
  } else {
    chassis_str_t json{};
    host.check(options.get_json(&options, str(name), &json));
    T values;
    for (const std::string& item : json_items(text_of(json))) {
      if constexpr (std::is_same_v<T, std::vector<std::string>>) {
        values.push_back(item);
      } else {
        typename T::value_type number{};
        std::from_chars(item.data(), item.data() + item.size(), number);
        values.push_back(number);
      }
    }
    return values;
  }
}

// [control] Any option as JSON text, tables too.
inline std::string option_json(const Host& host, std::string_view name) {
  const auto& options = host.service<chassis_options_t>();
  chassis_str_t json{};
  host.check(options.get_json(&options, str(name), &json));
  return std::string(text_of(json));
}

// [control] "file:line:column" of the value, or "default".
inline std::string option_origin(const Host& host, std::string_view name) {
  const auto& options = host.service<chassis_options_t>();
  chassis_str_t origin{};
  host.check(options.origin(&options, str(name), &origin));
  return std::string(text_of(origin));
}

// [control] True if an option's value differs from the default in `schema`. An option that is written down need not
// differ: the resolved configuration of a run has every option.
inline bool option_differs(const Host& host, const Options& schema, std::string_view name) {
  for (const chassis_option_t& option : schema.schema()) {
    if (text_of(option.name) != name) continue;
    const std::string fallback(text_of(option.default_json));
    switch (option.type) {
      case CHASSIS_OPTION_BOOL:
        return to_json(option_value<bool>(host, name)) != fallback;
      case CHASSIS_OPTION_INT:
        return to_json(option_value<int64_t>(host, name)) != fallback;
      case CHASSIS_OPTION_FLOAT:
        return to_json(option_value<double>(host, name)) != fallback;
      case CHASSIS_OPTION_STRING:
        return to_json(option_value<std::string>(host, name)) != fallback;
      case CHASSIS_OPTION_TABLE:
        return option_json(host, name) != fallback;
      default:
        return json_items(option_json(host, name)) != json_items(fallback);
    }
  }
  return option_origin(host, name) != "default";
}

CHASSIS_SDK_END
