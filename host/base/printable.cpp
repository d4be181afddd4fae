// Decodes UTF-8 and escapes what cannot be shown.
#include "host/base/printable.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace chassis {

// Overlong forms, surrogates and codes above U+10FFFF are not UTF-8 (RFC 3629).
Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {code, length};
}

bool is_control(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return true;
  if (code == 0x200E || code == 0x200F || code == 0x061C || code == 0xFEFF) return true;
  return (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

namespace {

std::string escaped(const char* format, uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string escaped(uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return code < 0x100 ? escaped("\\x%02x", code) : escaped("\\u%04x", code);
}

bool continues_a_message(std::string_view rest) {
  return rest.starts_with("  ") || rest.starts_with("hint: ") || rest.starts_with("caused by: ");
}

// Keeps only the beginning and the end of words that are longer than any usual path: a message that repeats a name of
// 100 kB is useless.
std::string shorten_words(const std::string& text) {
  constexpr size_t kMaxWordBytes = 1000, kBegin = 200, kEnd = 100;
  const auto is_inside = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; };  // inside a character
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    if (word.size() > kMaxWordBytes) {
      size_t begin = kBegin, rest = word.size() - kEnd;
      while (is_inside(word[begin])) --begin;
      while (rest < word.size() && is_inside(word[rest])) ++rest;
      out += std::string(word.substr(0, begin)) + "… (" + std::to_string(word.size()) + " bytes) …" +
             std::string(word.substr(rest));
    } else {
      out += word;
    }
    if (end < text.size()) out += text[end];
    at = end + 1;
  }
  return out;
}

std::string shown(std::string_view text, size_t max_bytes, bool is_message) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (out.size() >= max_bytes) return out + "… (" + std::to_string(text.size()) + " bytes)";
    const Character c = first_character(text.substr(at));
    if (c.num_bytes == 0)
      out += escaped("\\x%02x", static_cast<uint8_t>(text[at]));
    else if (!is_control(c.code) || (is_message && c.code == '\n' && continues_a_message(text.substr(at + 1))))
      out += text.substr(at, c.num_bytes);
    else
      out += escaped(c.code);
    at += c.num_bytes ? c.num_bytes : 1;
  }
  return out;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.num_bytes == 0) return false;
    text.remove_prefix(c.num_bytes);
  }
  return true;
}

std::string printable(std::string_view text, size_t max_bytes) { return shown(text, max_bytes, false); }

std::string printable_lines(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", at), text.size());
    out += printable(text.substr(at, end - at), std::string_view::npos);
    if (end < text.size()) out += text[end];
    at = end + 1;
  }
  return out;
}

std::string printable_message(std::string_view text, size_t max_bytes) {
  return shorten_words(shown(text, max_bytes, true));
}

std::string PrintablePieces::add(std::string_view piece) {
  pending_ += piece;
  size_t whole = pending_.size();
  for (size_t tail = 1; tail <= std::min<size_t>(3, whole); ++tail) {
    const auto byte = static_cast<uint8_t>(pending_[whole - tail]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t wanted = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC2 ? 2 : 1;
    if (wanted > tail) whole -= tail;
    break;
  }
  const std::string text = printable_lines(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return text;
}

std::string PrintablePieces::finish() { return printable_lines(std::exchange(pending_, {})); }

std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

}  // namespace chassis
