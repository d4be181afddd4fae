// JSON that keeps the order of keys, with strict access: a missing value or one of another type is an Error.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json_fwd.hpp"

namespace chassis {

// Refuses trailing text, duplicate keys, invalid UTF-8 and nesting deeper than 64. `name` is the file in messages.
Json parse_json(std::string_view text, const std::string& name, ExitCode code = ExitCode::kConfig);

// The same, but returns null for a text that parse_json() would refuse.
Json parse_json_or_null(std::string_view text);

struct JsonDefect {
  std::string what;
  size_t byte = 0;
};
// nullopt if the text is JSON, whatever its depth, and with or without duplicate keys.
std::optional<JsonDefect> json_defect(std::string_view text);

// The value on one line; bytes that are not UTF-8 are replaced.
std::string json_line(const Json& value);
// All values inside `value` except objects and arrays, in order, each with its dotted key: "data.train.0.path".
std::vector<std::pair<std::string, Json>> dotted_values(const Json& value);
// A line "KEY = VALUE" for each of them; ranks compare these texts.
std::string dotted_text(const Json& value);

// `where` names the object in messages, such as "models/x/config.json".
const Json& json_at(const Json& object, std::string_view key, const std::string& where);
bool json_bool(const Json& object, std::string_view key, const std::string& where);
int64_t json_int(const Json& object, std::string_view key, const std::string& where);
// The same for the value of `key`, which a loop over an object has at hand; looking it up takes time for every key.
int64_t json_int_in(const Json& value, std::string_view key, const std::string& where);
// An integer that is not negative.
uint64_t json_count(const Json& object, std::string_view key, const std::string& where);
double json_number(const Json& object, std::string_view key, const std::string& where);
std::string json_string(const Json& object, std::string_view key, const std::string& where);

// The same for keys that may be absent or null.
bool json_bool_or(const Json& object, std::string_view key, bool fallback, const std::string& where);
int64_t json_int_or(const Json& object, std::string_view key, int64_t fallback, const std::string& where);
double json_number_or(const Json& object, std::string_view key, double fallback, const std::string& where);
std::string json_string_or(const Json& object, std::string_view key, std::string fallback, const std::string& where);

}  // namespace chassis
