// A file of a tokenised set while it is written: sequentially, through a small buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "host/base/file.hpp"

namespace chassis {

class StoreOutput {
 public:
  explicit StoreOutput(const std::string& path);
  void append(const void* data, size_t num_bytes);
  void flush();
  void finish();
  uint32_t checksum() const { return checksum_; }  // over the flushed bytes

 private:
  File file_;
  uint64_t written_ = 0;
  uint32_t checksum_ = 0;
  std::string pending_;
};

// Throws a storage error if a file has another size than its manifest says.
void require_size(const File& file, uint64_t expected);

}  // namespace chassis
