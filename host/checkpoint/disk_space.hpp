// Room on the disk.
#pragma once

#include <cstdint>
#include <string>

namespace chassis {

// Creates the directory, and throws a storage error with both numbers if its free space is less than files of
// `file_bytes` bytes need.
void check_space(uint64_t file_bytes, const std::string& parent);

}  // namespace chassis
