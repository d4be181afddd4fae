#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace chassis {

// The whole of a regular file, or what a pipe or FIFO gives until its end. Gives up once nothing comes for as long as
// `patience`, or after more than max_bytes.
std::string read_file_or_pipe(const std::string& path, uint64_t max_bytes, std::chrono::milliseconds patience);

}  // namespace chassis
