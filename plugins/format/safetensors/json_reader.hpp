// A strict reader for untrusted JSON: RFC 8259 and valid UTF-8, nothing else. It builds no tree and decodes strings in
// place, so it allocates no memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "chassis/format_source.hpp"

namespace safetensors {

using Defect = chassis::FormatDefect;  // the caller adds the name of the file

// False for overlong forms, surrogates and values above U+10FFFF.
bool is_utf8(std::string_view text);

class JsonReader {
 public:
  static constexpr int kMaxDepth = 32;

  // Overwrites the text as it decodes strings.
  explicit JsonReader(std::string& text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  // Skips white space and returns the next character; 0 at the end.
  char peek();
  // Consumes the next character if it is `c`.
  bool consume(char c);
  void expect(char c, const char* where);
  // A decoded string, which points into the text.
  std::string_view string(const char* what);
  // Decimal digits only: no sign, fraction, exponent or leading zero.
  uint64_t unsigned_integer(const char* what);
  // Checks and skips a value.
  void skip_value(int depth = 0);
  // Throws unless only white space is left.
  void finish();

  size_t offset_of(std::string_view part) const { return static_cast<size_t>(part.data() - begin_); }
  size_t position() const { return static_cast<size_t>(at_ - begin_); }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  uint32_t hex4();
  char* escape(char* out);
  void skip_number();
  void skip_word(std::string_view word);

  char* begin_;
  char* at_;
  char* end_;
};

}  // namespace safetensors
