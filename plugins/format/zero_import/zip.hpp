// The directory of a ZIP file whose members are stored as they are, after PKWARE's APPNOTE 6.3. Nothing is unpacked and
// no member's name becomes a path.
#pragma once

#include <string>
#include <vector>

#include "source.hpp"

namespace zero_import {

struct ZipMember {
  std::string name;
  uint64_t offset = 0;  // of its bytes in the file
  uint64_t num_bytes = 0;
  uint32_t crc32 = 0;
};

// In the order of the directory. A Defect that says what is wrong: compressed or encrypted members, names that climb or
// come twice, members that overlap or reach out of the file, a directory that is not where the end of the file says.
std::vector<ZipMember> zip_members(const Source& source, uint32_t file);

// IEEE 802.3, as ZIP has it.
uint32_t crc32(std::string_view bytes);

}  // namespace zero_import
