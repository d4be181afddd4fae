// Integers of more than 64 bits, which JSON allows but the parsers here do not support. They pass through a parser as
// strings with a mark in front, and become digits again where the value is written.
#pragma once

#include <string>
#include <string_view>

namespace chassis {

// The JSON text with each such integer as a marked string; the same text if it has none. `found` says whether it has
// any. A text that has the mark itself is left as it is, so that its integers are refused as before.
std::string mark_wide_integers(std::string_view json, bool& found);

// The digits of a marked string; empty if the string has no mark.
std::string_view wide_integer_of(std::string_view text);

// The JSON text with marked strings as integers.
std::string unmark_wide_integers(std::string json);

}  // namespace chassis
