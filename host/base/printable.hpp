// Text that others wrote, made fit to be shown: names and values from files, plugins, models and other processes.
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
// The first of a text that is not empty.
Character first_character(std::string_view text);
// Characters that move the cursor, hide text or turn it around.
bool is_control(uint32_t code);

// One line. Control characters, controls of the direction of writing and bytes that are not UTF-8 are escaped
// ("\n", "\x1b", "\u202e"); what is longer than max_bytes is cut, and the length of the whole is said.
std::string printable(std::string_view text, size_t max_bytes = 200);

// A message of ours with such text inside: the same, but a line break stays where an indented line, "hint: " or
// "caused by: " follows, which is how messages list things. So no foreign text can start a line of its own. Of a word
// of more than 1000 bytes the middle is left out.
std::string printable_message(std::string_view text, size_t max_bytes = 65536);

// Many lines of ours for the standard output, with such text inside: line breaks and tabs stay, nothing is cut.
std::string printable_lines(std::string_view text);

// The same of a text that comes in pieces: a character that a piece leaves unfinished waits for the next one.
class PrintablePieces {
 public:
  std::string add(std::string_view piece);
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace chassis
