// The checksum of a checkpoint file from those of its header, its tensors, and the bytes that the format fills in
// around them after the checksums of the tensors are known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "host/base/hash.hpp"

namespace chassis {

class FileContent {
 public:
  // `of_format` is the kind of checksum that the format asks for.
  FileContent(std::string path, uint64_t num_bytes, std::string_view header, Crc of_format);

  void add_tensor(uint64_t offset, uint64_t num_bytes, uint32_t crc32c, uint32_t of_format);
  // Throws a plugin error if the bytes overlap the header, a tensor or bytes filled before, or extend past the end.
  void fill(uint64_t offset, std::string bytes);
  // The format's checksum of a range, with zeros where nothing is filled yet. Throws a plugin error if the range cuts
  // a tensor or the header.
  uint32_t checksum(uint64_t offset, uint64_t num_bytes) const { return checksum(of_format_, offset, num_bytes); }
  uint32_t crc32c() const { return checksum(Crc::k32c, 0, num_bytes_); }
  // The bytes that were filled, by offset.
  const std::map<uint64_t, std::string>& fills() const { return fills_; }

 private:
  struct Segment {
    uint64_t num_bytes;
    uint32_t crc32c, of_format;
  };
  void add(uint64_t offset, Segment segment);
  uint32_t checksum(Crc which, uint64_t offset, uint64_t num_bytes) const;

  std::string path_;
  uint64_t num_bytes_;
  Crc of_format_;
  std::map<uint64_t, Segment> segments_;  // by offset; bytes between them are zero
  std::map<uint64_t, std::string> fills_;
};

}  // namespace chassis
