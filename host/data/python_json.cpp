// Differs from Json::dump() in white space and in numbers.
#include "host/data/python_json.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "host/base/json.hpp"
#include "host/data/wide_integers.hpp"

namespace chassis {
namespace {

// As float.__repr__: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
void append_number(double value, std::string& out) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    out += text;
    return;
  }
  char fixed[64];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr;
  const std::string_view digits(fixed, fixed_end);
  out += digits;
  if (digits.find('.') == std::string_view::npos) out += ".0";
}

void append(const Json& value, bool has_wide_integers, std::string& out) {
  const char* separator = "";
  if (value.is_object()) {
    out += '{';
    for (const auto& [key, item] : value.items()) {
      out += separator + Json(key).dump() + ": ";
      append(item, has_wide_integers, out);
      separator = ", ";
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const Json& item : value) {
      out += separator;
      append(item, has_wide_integers, out);
      separator = ", ";
    }
    out += ']';
  } else if (value.is_number_float()) {
    append_number(value.get<double>(), out);
  } else {
    const std::string text = value.dump();
    out += has_wide_integers ? unmark_wide_integers(text) : text;
  }
}

}  // namespace

std::string python_json(const Json& value, bool has_wide_integers) {
  std::string out;
  append(value, has_wide_integers, out);
  return out;
}

}  // namespace chassis
