// The directory of a ZIP file with uncompressed members, as in PKWARE's APPNOTE 6.3. Nothing is unpacked, and names of
// members are never used as paths.
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

// Returns the members in the order of the directory. Throws a Defect for compressed or encrypted members, for names
// that leave the folder or appear twice, for members that overlap or extend past the file, and for a directory that is
// not at the place that the end of the file gives.
std::vector<ZipMember> zip_members(const Source& source, uint32_t file);

// The CRC-32 of ZIP files, IEEE 802.3.
uint32_t crc32(std::string_view bytes);

}  // namespace zero_import
