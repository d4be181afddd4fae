// JSON with the order of keys kept, and strict access to it: what is missing or of another type is an Error in words.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/json_fwd.hpp"

namespace chassis {

// Refuses trailing text, duplicate keys, invalid UTF-8 and nesting deeper than 64. `name` is the file in messages.
Json parse_json(std::string_view text, const std::string& name, ExitCode code = ExitCode::kConfig);

// On one line; bytes that are not UTF-8 are replaced.
std::string json_line(const Json& value);
// Every value within that is no table or list, in order, by its dotted key: "data.train.0.path".
std::vector<std::pair<std::string, Json>> dotted_values(const Json& value);
// "KEY = VALUE" of each, on a line: what two ranks compare.
std::string dotted_text(const Json& value);

// `where` names the object in messages, such as "models/x/config.json".
const Json& json_at(const Json& object, std::string_view key, const std::string& where);
bool json_bool(const Json& object, std::string_view key, const std::string& where);
int64_t json_int(const Json& object, std::string_view key, const std::string& where);
double json_number(const Json& object, std::string_view key, const std::string& where);
std::string json_string(const Json& object, std::string_view key, const std::string& where);

// The same for keys that may be absent or null.
bool json_bool_or(const Json& object, std::string_view key, bool fallback, const std::string& where);
int64_t json_int_or(const Json& object, std::string_view key, int64_t fallback, const std::string& where);
double json_number_or(const Json& object, std::string_view key, double fallback, const std::string& where);
std::string json_string_or(const Json& object, std::string_view key, std::string fallback, const std::string& where);

}  // namespace chassis
