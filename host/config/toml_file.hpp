// TOML text to a tree of values with positions. The only place that knows the parser.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "host/config/value.hpp"

namespace chassis {

// Of a dotted key; what has more is refused, as are lists and tables that stand deep inside each other.
constexpr size_t kMaxKeyParts = 32;

// Throws a config error with the position of the first mistake. `name` is the file in positions.
Value parse_toml(std::string_view text, const std::string& name);

// The value of `text` alone, such as 3, "x" or [1, 2]; nothing if it is no TOML value.
std::optional<Value> parse_toml_value(const std::string& text, const Origin& origin);

}  // namespace chassis
