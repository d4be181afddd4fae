// At most three significant digits.
#include "host/base/units.hpp"

#include <fmt/core.h>

#include <cmath>

namespace chassis {
namespace {

std::string three_digits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text.find('.') != std::string::npos) {
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string scaled(double value, double base, const char* const* suffixes, int num_suffixes, double limit) {
  int i = 0;
  while (std::abs(value) >= limit && i + 1 < num_suffixes) value /= base, ++i;
  return (value < 0 ? "-" : "") + (i == 0 ? fmt::format("{:.0f}", std::abs(value)) : three_digits(std::abs(value))) +
         suffixes[i];
}

}  // namespace

std::string bytes_text(uint64_t num_bytes) {
  static constexpr const char* kSuffixes[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(static_cast<double>(num_bytes), 1024, kSuffixes, 6, 1023.5);
}

std::string count_text(double count) {
  static constexpr const char* kSuffixes[] = {"", "k", "M", "G", "T"};
  return scaled(count, 1000, kSuffixes, 5, 999.5);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto total = static_cast<uint64_t>(std::llround(std::min(seconds, 1e15)));
  const uint64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60, rest = total % 60;
  if (days > 0) return fmt::format("{}d {}:{:02}:{:02}", days, hours, minutes, rest);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, rest);
  return fmt::format("{}:{:02}", minutes, rest);
}

}  // namespace chassis
