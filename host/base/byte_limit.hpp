// A number of bytes beside the limit that it exceeds, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace chassis {

// As bytes_text() writes them, but in bytes if the two would read alike.
std::pair<std::string, std::string> bytes_texts(uint64_t num_bytes, uint64_t limit);

}  // namespace chassis
