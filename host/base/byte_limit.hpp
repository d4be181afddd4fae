// Texts for messages: a number of bytes and the limit that it exceeds.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace chassis {

// Both as bytes_text() writes them, or as exact numbers of bytes if the two would read alike.
std::pair<std::string, std::string> bytes_texts(uint64_t num_bytes, uint64_t limit);

}  // namespace chassis
