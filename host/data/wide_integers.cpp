// The mark is U+FDD0, which Unicode reserves for uses inside a program.
#include "host/data/wide_integers.hpp"

#include <algorithm>
#include <cctype>

namespace chassis {
namespace {

constexpr std::string_view kMark = "\xEF\xB7\x90";
constexpr std::string_view kMax = "18446744073709551615", kMin = "9223372036854775808";  // without its sign
constexpr std::string_view kNumber = "0123456789+-.eE";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool has_mark(std::string_view json) {
  if (json.find(kMark) != std::string_view::npos) return true;
  constexpr std::string_view kEscape = "\\ufdd0";
  const auto is_same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  return std::search(json.begin(), json.end(), kEscape.begin(), kEscape.end(), is_same) != json.end();
}

// True for an integer beyond 64 bits.
bool is_wide(std::string_view number) {
  const bool is_negative = number.starts_with('-');
  const std::string_view digits = number.substr(is_negative ? 1 : 0), limit = is_negative ? kMin : kMax;
  if (digits.empty() || digits.front() == '0' || !std::all_of(digits.begin(), digits.end(), is_digit)) return false;
  return digits.size() != limit.size() ? digits.size() > limit.size() : digits > limit;
}

}  // namespace

std::string mark_wide_integers(std::string_view json, bool& found) {
  found = false;
  std::string out;
  size_t copied = 0;
  for (size_t i = 0; i < json.size();) {
    if (json[i] == '"') {
      for (++i; i < json.size() && json[i] != '"'; ++i)
        if (json[i] == '\\') ++i;
      ++i;
      continue;
    }
    if (!is_digit(json[i]) && json[i] != '-') {
      ++i;
      continue;
    }
    const size_t begin = i;
    i = std::min(json.find_first_not_of(kNumber, begin), json.size());
    if (!is_wide(json.substr(begin, i - begin))) continue;
    if (!found && has_mark(json)) return std::string(json);
    found = true;
    out.append(json, copied, begin - copied).append("\"").append(kMark).append(json, begin, i - begin).append("\"");
    copied = i;
  }
  return out.append(json, copied);
}

std::string_view wide_integer_of(std::string_view text) {
  if (!text.starts_with(kMark)) return "";
  const std::string_view number = text.substr(kMark.size());
  return is_wide(number) ? number : "";
}

std::string unmark_wide_integers(std::string json) {
  const std::string open = "\"" + std::string(kMark);
  std::string out;
  size_t copied = 0;
  for (size_t at = json.find(open); at != std::string::npos; at = json.find(open, at)) {
    const size_t begin = at + open.size(), end = json.find('"', begin);
    if (end == std::string::npos) break;
    at = end;
    if (!is_wide(std::string_view(json).substr(begin, end - begin))) continue;
    out.append(json, copied, begin - open.size() - copied).append(json, begin, end - begin);
    copied = end + 1;
  }
  if (copied == 0) return json;
  return out.append(json, copied);
}

}  // namespace chassis
