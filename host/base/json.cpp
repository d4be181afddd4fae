// Strict JSON access on top of nlohmann-json.
#include "host/base/json.hpp"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "host/base/printable.hpp"
#include "host/base/reading.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxDepth = 64;

SourcePosition position_of_byte(std::string_view text, const std::string& name, size_t byte) {
  SourcePosition at{name, 1, 1};
  for (size_t i = 0; i < byte && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++at.line;
      at.column = 1;
    } else {
      ++at.column;
    }
  }
  return at;
}

JsonDefect defect_of(const nlohmann::json::parse_error& cause) {
  std::string detail = cause.what();
  if (const size_t start = detail.find("syntax error"); start != std::string::npos) detail = detail.substr(start);
  return {printable(detail, 300), cause.byte > 0 ? cause.byte - 1 : 0};
}

// The defect of a number such as 1e400, whose position the parser does not give.
JsonDefect defect_of(const nlohmann::json::out_of_range& cause, std::string_view text) {
  const std::string detail = cause.what();
  const size_t quote = detail.find('\'');
  const std::string number = quote == std::string::npos ? "" : detail.substr(quote + 1, detail.rfind('\'') - quote - 1);
  return {"the number " + printable(number) + " is too large", std::min(text.find(number), text.size())};
}

// The offset of the first key that its object already has; npos if the two are written with different escapes.
size_t byte_of_duplicate_key(std::string_view text) {
  std::vector<std::unordered_set<std::string_view>> keys;  // one set for each open object or array
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') keys.emplace_back();
    if ((text[i] == '}' || text[i] == ']') && !keys.empty()) keys.pop_back();
    if (text[i] != '"') continue;
    const size_t begin = i;
    for (++i; i < text.size() && text[i] != '"'; ++i)
      if (text[i] == '\\') ++i;
    const size_t next = text.find_first_not_of(" \t\r\n", std::min(i + 1, text.size()));
    const bool is_key = next != std::string_view::npos && text[next] == ':' && !keys.empty();
    if (is_key && !keys.back().insert(text.substr(begin, i - begin)).second) return begin;
  }
  return std::string_view::npos;
}

SourcePosition position_of_duplicate_key(std::string_view text, const std::string& name) {
  const size_t byte = byte_of_duplicate_key(text);
  return byte == std::string_view::npos ? SourcePosition{name} : position_of_byte(text, name, byte);
}

// Events that only say whether a text is JSON.
struct JsonEvents {
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(Json::number_integer_t) { return true; }
  bool number_unsigned(Json::number_unsigned_t) { return true; }
  bool number_float(Json::number_float_t, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }
  bool start_object(size_t) { return true; }
  bool key(std::string&) { return true; }
  bool end_object() { return true; }
  bool start_array(size_t) { return true; }
  bool end_array() { return true; }
  template <class Exception>
  bool parse_error(size_t, const std::string&, const Exception& error) {
    throw Exception(error);
  }
};

// Builds a value from the events of the parser. Rationale: an object that keeps the order of its keys compares a new
// key with all that it has, so the library's own builder takes time that grows with the square of the keys.
class JsonBuilder : public JsonEvents {
 public:
  JsonBuilder(std::string_view text, const std::string& name, ExitCode code) : text_(text), name_(name), code_(code) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool start_object(size_t) {
    check_depth();
    open_.push_back(place(Json::object()));
    keys_.emplace_back();
    return true;
  }
  bool key(std::string& key) {
    check_depth();
    if (!keys_.back().insert(key).second)
      throw Error(code_, position_of_duplicate_key(text_, name_), "duplicate key '" + printable(key) + "'");
    auto& members = open_.back()->get_ref<Json::object_t&>();
    members.emplace_back(std::move(key), Json());
    member_ = &members.back().second;
    return true;
  }
  bool end_object() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool start_array(size_t) {
    check_depth();
    open_.push_back(place(Json::array()));
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }

  Json take() { return std::move(root_); }

 private:
  void check_depth() const {
    if (open_.size() > kMaxDepth)
      throw Error(code_, SourcePosition{name_}, "nested deeper than " + std::to_string(kMaxDepth));
  }

  bool add(Json value) {
    check_depth();
    place(std::move(value));
    return true;
  }

  // Only the innermost container grows, so pointers to those around it stay valid.
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) {
      *member_ = std::move(value);
      return member_;
    }
    auto& items = open_.back()->get_ref<Json::array_t&>();
    items.push_back(std::move(value));
    return &items.back();
  }

  std::string_view text_;
  const std::string& name_;
  ExitCode code_;
  Json root_;
  std::vector<Json*> open_;                            // objects and arrays, the innermost last
  std::vector<std::unordered_set<std::string>> keys_;  // of each open object
  Json* member_ = nullptr;                             // value of the last key
};

[[noreturn]] void wrong_type(const Json& value, std::string_view key, const char* wanted, const std::string& where) {
  throw Error(ExitCode::kConfig,
              where + ": '" + std::string(key) + "' must be " + wanted + ", not " + value.type_name());
}

bool absent(const Json& object, std::string_view key, const std::string& where) {
  if (!object.is_object()) throw config_error(where + ": expected an object, found " + object.type_name());
  const auto it = object.find(std::string(key));
  return it == object.end() || it->is_null();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name, ExitCode code) {
  // The parser would take a zero byte for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    throw Error(code, position_of_byte(text, name, zero), "not valid JSON: a byte of value 0");
  try {
    JsonBuilder builder(text, name, code);
    Json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take();
  } catch (const nlohmann::json::parse_error& cause) {
    const JsonDefect defect = defect_of(cause);
    throw Error(code, position_of_byte(text, name, defect.byte), "not valid JSON: " + defect.what);
  } catch (const nlohmann::json::out_of_range& cause) {
    const JsonDefect defect = defect_of(cause, text);
    throw Error(code, position_of_byte(text, name, defect.byte), defect.what);
  } catch (...) {
    rethrow_as_error(name, code);
  }
}

Json parse_json_or_null(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const Error&) {
    return {};
  }
}

std::optional<JsonDefect> json_defect(std::string_view text) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) return JsonDefect{"a byte of value 0", zero};
  try {
    JsonEvents events;
    Json::sax_parse(text.begin(), text.end(), &events);
    return std::nullopt;
  } catch (const nlohmann::json::parse_error& cause) {
    return defect_of(cause);
  } catch (const nlohmann::json::out_of_range& cause) {
    return defect_of(cause, text);
  }
}

std::string json_line(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::vector<std::pair<std::string, Json>> dotted_values(const Json& value) {
  std::vector<std::pair<std::string, Json>> values;
  const Json flat = value.flatten();
  for (const auto& [pointer, part] : flat.items()) {
    std::string key = pointer.empty() ? "" : pointer.substr(1);
    std::replace(key.begin(), key.end(), '/', '.');
    values.emplace_back(std::move(key), part);
  }
  return values;
}

std::string dotted_text(const Json& value) {
  std::string text;
  for (const auto& [key, part] : dotted_values(value)) text += key + " = " + json_line(part) + "\n";
  return text;
}

const Json& json_at(const Json& object, std::string_view key, const std::string& where) {
  if (absent(object, key, where)) throw config_error(where + ": '" + std::string(key) + "' is missing");
  return *object.find(std::string(key));
}

bool json_bool(const Json& object, std::string_view key, const std::string& where) {
  const Json& value = json_at(object, key, where);
  if (!value.is_boolean()) wrong_type(value, key, "true or false", where);
  return value.get<bool>();
}

int64_t json_int(const Json& object, std::string_view key, const std::string& where) {
  return json_int_in(json_at(object, key, where), key, where);
}

int64_t json_int_in(const Json& value, std::string_view key, const std::string& where) {
  if (!value.is_number_integer()) wrong_type(value, key, "an integer", where);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw config_error(where + ": '" + std::string(key) + "' is larger than a 64-bit integer: " + value.dump());
  }
  return value.get<int64_t>();
}

uint64_t json_count(const Json& object, std::string_view key, const std::string& where) {
  const int64_t count = json_int(object, key, where);
  if (count < 0)
    throw config_error(where + ": '" + std::string(key) + "' is " + std::to_string(count) + ", expected 0 or more");
  return static_cast<uint64_t>(count);
}

double json_number(const Json& object, std::string_view key, const std::string& where) {
  const Json& value = json_at(object, key, where);
  if (!value.is_number()) wrong_type(value, key, "a number", where);
  return value.get<double>();
}

std::string json_string(const Json& object, std::string_view key, const std::string& where) {
  const Json& value = json_at(object, key, where);
  if (!value.is_string()) wrong_type(value, key, "a string", where);
  return value.get<std::string>();
}

bool json_bool_or(const Json& object, std::string_view key, bool fallback, const std::string& where) {
  return absent(object, key, where) ? fallback : json_bool(object, key, where);
}
int64_t json_int_or(const Json& object, std::string_view key, int64_t fallback, const std::string& where) {
  return absent(object, key, where) ? fallback : json_int(object, key, where);
}
double json_number_or(const Json& object, std::string_view key, double fallback, const std::string& where) {
  return absent(object, key, where) ? fallback : json_number(object, key, where);
}
std::string json_string_or(const Json& object, std::string_view key, std::string fallback, const std::string& where) {
  return absent(object, key, where) ? std::move(fallback) : json_string(object, key, where);
}

}  // namespace chassis
