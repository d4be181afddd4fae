// Text that others wrote, made fit to be shown: names and values from files, plugins, models and other processes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace chassis {

bool is_utf8(std::string_view text);

// One line. Control characters, controls of the direction of writing and bytes that are not UTF-8 are escaped
// ("\n", "\x1b", "\u202e"); what is longer than max_bytes is cut, and the length of the whole is said.
std::string printable(std::string_view text, size_t max_bytes = 200);

// A message of ours with such text inside: the same, but a line break stays where an indented line, "hint: " or
// "caused by: " follows, which is how messages list things. So no foreign text can start a line of its own.
std::string printable_message(std::string_view text, size_t max_bytes = 65536);

// Many lines of ours for the standard output, with such text inside: line breaks and tabs stay, nothing is cut.
std::string printable_lines(std::string_view text);

}  // namespace chassis
