// Reading a format without the boundary: plain values in and out, so that the code that parses untrusted files also
// runs on bytes in memory, for tests and fuzzing. Format::scan_source() connects it to the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// A defect of a file; the message describes it.
class FormatDefect : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The directory is not of this format; the message says which files were expected.
class NotThisFormat : public FormatDefect {
 public:
  using FormatDefect::FormatDefect;
};

struct SourceFile {
  std::string path;  // relative
  uint64_t num_bytes = 0;
};

// The files of a directory.
struct FileSource {
  std::vector<SourceFile> files;  // sorted by path
  // Reads exactly num_bytes from offset on, within the file's size. Throws on failure.
  std::function<void(uint32_t file, uint64_t offset, uint64_t num_bytes, void* out)> read;

  // Index of the path, or -1.
  int64_t find(std::string_view path) const {
    const auto it =
        std::lower_bound(files.begin(), files.end(), path,
                         [](const SourceFile& file, std::string_view wanted) { return file.path < wanted; });
    return it != files.end() && it->path == path ? it - files.begin() : -1;
  }
  std::string text(uint32_t file, uint64_t offset, uint64_t num_bytes) const {
    std::string bytes(num_bytes, '\0');
    read(file, offset, num_bytes, bytes.data());
    return bytes;
  }
};

// A box of a tensor, contiguous in a file.
struct FoundTensor {
  std::string_view name;
  uint32_t dtype = 0;  // CHASSIS_DTYPE_…
  std::vector<int64_t> global_shape, box_offset, box_shape;
  uint64_t num_bytes = 0;
  uint32_t rank = 0;
  uint32_t file = 0;
  uint64_t offset = 0;  // bytes
};

struct FoundSink {
  std::function<void(const FoundTensor&)> tensor;
  std::function<void(std::string_view key, std::string_view value)> metadata;
  // Something was left out, or is odd but leaves the files readable; counted.
  std::function<void(std::string_view key, std::string_view text)> warning;
};

CHASSIS_SDK_END
