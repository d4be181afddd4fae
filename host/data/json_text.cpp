// Copies runs of bytes that need no escape.
#include "host/data/json_text.hpp"

#include <fmt/format.h>

#include <iterator>

namespace chassis {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, begin, i - begin);
    begin = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    }
  }
  out.append(text, begin, text.size() - begin);
  out += '"';
}

}  // namespace chassis
