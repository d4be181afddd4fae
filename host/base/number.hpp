// Numbers of one kind as another, where that may not be possible.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace chassis {

// The whole number that the value is, or is rounded down to; nothing if it is NaN or beyond 64 bits.
inline std::optional<int64_t> to_int64(double value) {
  const double whole = std::floor(value);
  if (!(whole >= -0x1p63 && whole < 0x1p63)) return std::nullopt;
  return static_cast<int64_t>(whole);
}

}  // namespace chassis
