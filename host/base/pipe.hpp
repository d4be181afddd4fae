// Reads a file that may be a pipe.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace chassis {

// The content of a regular file, or of a pipe or FIFO until its end. Throws a storage error if nothing arrives within
// `timeout`, or if there are more than max_bytes.
std::string read_file_or_pipe(const std::string& path, uint64_t max_bytes, std::chrono::milliseconds timeout);

}  // namespace chassis
