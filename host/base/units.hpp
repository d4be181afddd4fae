// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace chassis {

std::string bytes_text(uint64_t num_bytes);  // "512 B", "1.5 GiB"
std::string count_text(double count);        // "950", "12.3k", "1.24M"
std::string duration_text(double seconds);   // "0:42", "1:02:03", "2d 3:04:05"

}  // namespace chassis
