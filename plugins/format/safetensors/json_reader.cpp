// Recursive descent with a maximum depth; checks UTF-8 by the table of RFC 3629.
#include "json_reader.hpp"

#include <cstring>

namespace safetensors {
namespace {

// Length in bytes of the UTF-8 character at `at`; 0 if it is not valid.
size_t utf8_length(const char* at, const char* end) {
  const auto byte = [&](int i) { return static_cast<unsigned char>(at[i]); };
  const auto follows = [&](int i, unsigned low = 0x80, unsigned high = 0xBF) {
    return at + i < end && byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

char* append_utf8(char* out, uint32_t code) {
  if (code < 0x80) {
    *out++ = static_cast<char>(code);
  } else if (code < 0x800) {
    *out++ = static_cast<char>(0xC0 | (code >> 6));
    *out++ = static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *out++ = static_cast<char>(0xE0 | (code >> 12));
    *out++ = static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out++ = static_cast<char>(0x80 | (code & 0x3F));
  } else {
    *out++ = static_cast<char>(0xF0 | (code >> 18));
    *out++ = static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    *out++ = static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    *out++ = static_cast<char>(0x80 | (code & 0x3F));
  }
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool is_utf8(std::string_view text) {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const size_t length = utf8_length(at, end);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void JsonReader::fail(const std::string& what) const {
  throw Defect("JSON byte " + std::to_string(position()) + ": " + what);
}

char JsonReader::peek() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  return at_ < end_ ? *at_ : '\0';
}

bool JsonReader::consume(char c) {
  if (peek() != c || at_ == end_) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c, const char* where) {
  if (!consume(c)) fail(std::string("expected '") + c + "' " + where);
}

std::string_view JsonReader::string(const char* what) {
  if (!consume('"')) fail(std::string("expected a string: ") + what);
  char* const start = at_;
  char* out = at_;
  for (;;) {
    if (at_ == end_) fail("a string does not end");
    const auto c = static_cast<unsigned char>(*at_);
    if (c == '"') break;
    if (c < 0x20) fail("a control character in a string");
    if (c == '\\') {
      ++at_;
      out = escape(out);
    } else {
      const size_t length = utf8_length(at_, end_);
      if (length == 0) fail("invalid UTF-8");
      if (out != at_) std::memmove(out, at_, length);
      out += length;
      at_ += length;
    }
  }
  ++at_;
  return {start, static_cast<size_t>(out - start)};
}

uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    if (at_ == end_) fail("an escape does not end");
    const char c = *at_;
    if (is_digit(c)) {
      value = value * 16 + static_cast<uint32_t>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      value = value * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      fail("an escape is not hexadecimal");
    }
  }
  return value;
}

char* JsonReader::escape(char* out) {
  if (at_ == end_) fail("an escape does not end");
  const char c = *at_++;
  switch (c) {
    case '"':
    case '\\':
    case '/':
      *out++ = c;
      return out;
    case 'b':
      *out++ = '\b';
      return out;
    case 'f':
      *out++ = '\f';
      return out;
    case 'n':
      *out++ = '\n';
      return out;
    case 'r':
      *out++ = '\r';
      return out;
    case 't':
      *out++ = '\t';
      return out;
    case 'u':
      break;
    default:
      fail("an unknown escape");
  }
  uint32_t code = hex4();
  if (code >= 0xDC00 && code <= 0xDFFF) fail("a lone surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (end_ - at_ < 2 || at_[0] != '\\' || at_[1] != 'u') fail("a lone surrogate");
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("a lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  return append_utf8(out, code);
}

uint64_t JsonReader::unsigned_integer(const char* what) {
  const std::string wanted = std::string("expected a whole number of at most 64 bits: ") + what;
  if (!is_digit(peek())) fail(wanted);
  if (*at_ == '0' && at_ + 1 < end_ && is_digit(at_[1])) fail(wanted);
  uint64_t value = 0;
  for (; at_ < end_ && is_digit(*at_); ++at_) {
    const auto digit = static_cast<uint64_t>(*at_ - '0');
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) || __builtin_add_overflow(value, digit, &value))
      fail(wanted);
  }
  if (at_ < end_ && (*at_ == '.' || (*at_ | 0x20) == 'e')) fail(wanted);
  return value;
}

void JsonReader::skip_number() {
  const auto digits = [&] {
    if (at_ == end_ || !is_digit(*at_)) fail("a malformed number");
    while (at_ < end_ && is_digit(*at_)) ++at_;
  };
  if (*at_ == '-') ++at_;
  if (at_ < end_ && *at_ == '0') {
    ++at_;
  } else {
    digits();
  }
  if (at_ < end_ && *at_ == '.') ++at_, digits();
  if (at_ < end_ && (*at_ | 0x20) == 'e') {
    ++at_;
    if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
    digits();
  }
}

void JsonReader::skip_word(std::string_view word) {
  if (static_cast<size_t>(end_ - at_) < word.size() || std::string_view(at_, word.size()) != word)
    fail("not a JSON value");
  at_ += word.size();
}

void JsonReader::skip_value(int depth) {
  if (depth > kMaxDepth) fail("nested deeper than " + std::to_string(kMaxDepth));
  const char c = peek();
  if (c == '"') {
    string("a value");
  } else if (consume('[')) {
    if (consume(']')) return;
    do skip_value(depth + 1);
    while (consume(','));
    expect(']', "after an array");
  } else if (consume('{')) {
    if (consume('}')) return;
    do {
      string("a key");
      expect(':', "after a key");
      skip_value(depth + 1);
    } while (consume(','));
    expect('}', "after an object");
  } else if (c == '-' || is_digit(c)) {
    skip_number();
  } else if (c == 't') {
    skip_word("true");
  } else if (c == 'f') {
    skip_word("false");
  } else {
    skip_word("null");
  }
}

void JsonReader::finish() {
  if (peek(); at_ != end_) fail("text after the last '}'");
}

}  // namespace safetensors
