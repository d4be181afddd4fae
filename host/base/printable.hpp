// Makes foreign text safe to show: names and values from files, plugins, models and other processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace chassis {

bool is_utf8(std::string_view text);

struct Character {
  uint32_t code = 0;
  size_t num_bytes = 0;  // 0: not UTF-8
};
// The first character of a text, which must not be empty.
Character first_character(std::string_view text);
// True for characters that move the cursor, hide text or change its direction.
bool is_control(uint32_t code);

// Foreign text as one line. Escapes control characters, controls of the text direction and bytes that are not UTF-8
// ("\n", "\x1b", "\u202e"). Cuts text that is longer than max_bytes, and appends its length.
std::string printable(std::string_view text, size_t max_bytes = 200);

// The same for a message of the program with foreign text inside, but a line break stays if an indented line, "hint: "
// or "caused by: " follows. So foreign text cannot start any other line. The middle of a word of more than 1000 bytes
// is left out.
std::string printable_message(std::string_view text, size_t max_bytes = 65536);

// The same for lines on standard output with foreign text inside: keeps line breaks and tabs, and cuts nothing.
std::string printable_lines(std::string_view text);

// Escapes text for HTML, also inside the quotes of an attribute.
std::string html_text(std::string_view text);

// printable_lines() for a text that arrives in pieces: an incomplete character waits for the next piece.
class PrintablePieces {
 public:
  std::string add(std::string_view piece);
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace chassis
