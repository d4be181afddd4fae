// Checksums of data written in pieces: the checksum of a box from those of the parts that several ranks wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "host/base/hash.hpp"

namespace chassis {

// The contribution of one part of a box to the box's checksum. A CRC is linear: this is the remainder of the whole box
// with zeros in place of all other bytes, and the remainders of the parts are combined by xor.
class PartChecksum {
 public:
  explicit PartChecksum(Crc which = Crc::k32c) : which_(which) {}
  // Call in ascending order of the offset in the box.
  void add(uint64_t offset, std::span<const std::byte> bytes) {
    remainder_ = crc_shift(which_, remainder_, offset - at_);
    remainder_ = ~crc_update(which_, ~remainder_, bytes.data(), bytes.size());
    at_ = offset + bytes.size();
  }
  uint32_t remainder(uint64_t box_bytes) const { return crc_shift(which_, remainder_, box_bytes - at_); }
  uint64_t at() const { return at_; }

 private:
  Crc which_;
  uint32_t remainder_ = 0;
  uint64_t at_ = 0;
};

// The same for bytes in any order, each byte at most once.
class RunsChecksum {
 public:
  explicit RunsChecksum(uint64_t box_bytes, Crc which = Crc::k32c)
      : box_bytes_(box_bytes), which_(which), run_(which) {}
  void add(uint64_t offset, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    if (offset < run_.at()) remainder_ ^= std::exchange(run_, PartChecksum(which_)).remainder(box_bytes_);
    run_.add(offset, bytes);
  }
  uint32_t remainder() const { return remainder_ ^ run_.remainder(box_bytes_); }

 private:
  uint64_t box_bytes_;
  Crc which_;
  uint32_t remainder_ = 0;
  PartChecksum run_;  // ascending
};

// The checksum of a box from the remainders of all its parts, combined by xor.
inline uint32_t box_checksum(uint32_t remainders, uint64_t box_bytes, Crc which = Crc::k32c) {
  return ~crc_shift(which, ~uint32_t{0}, box_bytes) ^ remainders;
}

}  // namespace chassis
