// Writes JSON text.
#pragma once

#include <string>
#include <string_view>

namespace chassis {

// In quotes and escaped; the text must be UTF-8.
void append_json_string(std::string& out, std::string_view text);

}  // namespace chassis
