// Parses TOML text into a tree of values with positions. No other file uses the parser.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "host/config/value.hpp"

namespace chassis {

// Maximum number of parts in a dotted key; longer keys are refused, as are deeply nested lists and tables.
constexpr size_t kMaxKeyParts = 32;

// Throws a config error with the position of the first mistake. `name` is the file in positions.
TomlValue parse_toml(std::string_view text, const std::string& name);

// The value of `text` alone, such as 3, "x" or [1, 2]; nothing if it is not a TOML value.
std::optional<TomlValue> parse_toml_value(const std::string& text, const Origin& origin);

}  // namespace chassis
