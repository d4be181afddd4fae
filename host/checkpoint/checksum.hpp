// CRC32C of what is written in pieces: of a box from the parts that several ranks wrote of it, of a file from its
// boxes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "host/base/hash.hpp"

namespace chassis {

// What one part of a box adds to the box's checksum, wherever its bytes lie. A checksum is linear: this is the
// remainder of the whole box with zeros in place of all other bytes, and the remainders of parts are added by xor.
class PartChecksum {
 public:
  // Bytes of the part in ascending order of their offset in the box.
  void add(uint64_t offset, std::span<const std::byte> bytes) {
    remainder_ = crc32c_shift(remainder_, offset - at_);
    remainder_ = ~crc32c(~remainder_, bytes.data(), bytes.size());
    at_ = offset + bytes.size();
  }
  uint32_t remainder(uint64_t box_bytes) const { return crc32c_shift(remainder_, box_bytes - at_); }

 private:
  uint32_t remainder_ = 0;
  uint64_t at_ = 0;
};

// The checksum of a box; `remainders` of all its parts, added by xor.
inline uint32_t box_checksum(uint32_t remainders, uint64_t box_bytes) {
  return ~crc32c_shift(~uint32_t{0}, box_bytes) ^ remainders;
}

class FileChecksum {
 public:
  explicit FileChecksum(const std::string& header)
      : crc_(crc32c(0, header.data(), header.size())), at_(header.size()) {}
  // In ascending order; what lies between is zero.
  void add(uint64_t offset, uint32_t crc, uint64_t num_bytes) {
    if (num_bytes == 0) return;
    crc_ = crc32c_combine(crc_, box_checksum(0, offset - at_), offset - at_);
    crc_ = crc32c_combine(crc_, crc, num_bytes);
    at_ = offset + num_bytes;
  }
  uint64_t at() const { return at_; }
  uint32_t value() const { return crc_; }

 private:
  uint32_t crc_;
  uint64_t at_;
};

}  // namespace chassis
