// A file of a checkpoint by its checksums: header, tensors, what the format fills in around them once theirs are known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "host/base/hash.hpp"

namespace chassis {

class FileContent {
 public:
  // `of_format` is the checksum that the format asks for.
  FileContent(std::string path, uint64_t num_bytes, std::string_view header, Crc of_format);

  void add_tensor(uint64_t offset, uint64_t num_bytes, uint32_t crc32c, uint32_t of_format);
  // Throws a plugin error if the bytes lie in the header, in a tensor, in what was filled before, or behind the end.
  void fill(uint64_t offset, std::string bytes);
  // The format's, of a range as far as it is filled. Throws a plugin error if it cuts a tensor or the header.
  uint32_t checksum(uint64_t offset, uint64_t num_bytes) const { return checksum(of_format_, offset, num_bytes); }
  uint32_t crc32c() const { return checksum(Crc::k32c, 0, num_bytes_); }
  // What was filled, by offset.
  const std::map<uint64_t, std::string>& fills() const { return fills_; }

 private:
  struct Stretch {
    uint64_t num_bytes;
    uint32_t crc32c, of_format;
  };
  void add(uint64_t offset, Stretch stretch);
  uint32_t checksum(Crc which, uint64_t offset, uint64_t num_bytes) const;

  std::string path_;
  uint64_t num_bytes_;
  Crc of_format_;
  std::map<uint64_t, Stretch> stretches_;  // by offset; what lies between is zero
  std::map<uint64_t, std::string> fills_;
};

}  // namespace chassis
