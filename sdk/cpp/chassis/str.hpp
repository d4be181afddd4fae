// Conversions of strings that cross the boundary, and messages from parts.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "chassis/abi.h"
#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// Borrows the text.
constexpr chassis_str_t str(std::string_view text) noexcept { return {text.data(), text.size()}; }
constexpr std::string_view text_of(chassis_str_t s) noexcept {
  return s.len == 0 ? std::string_view() : std::string_view(s.ptr, s.len);
}

inline void append_part(std::string& out, std::string_view part) { out += part; }
inline void append_part(std::string& out, const char* part) { out += part; }
inline void append_part(std::string& out, bool part) { out += part ? "true" : "false"; }
template <typename Number>
requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>) void append_part(std::string& out,
                                                                                         Number part) {
  if constexpr (std::is_integral_v<Number>) {
    out += std::to_string(part);
  } else {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(part));
    out += buffer;
  }
}

// join("head_dim ", 80, " is not a multiple of ", 16)
template <typename... Parts>
std::string join(const Parts&... parts) {
  std::string out;
  (append_part(out, parts), ...);
  return out;
}

CHASSIS_SDK_END
