// The files of a checkpoint, none of which is trusted.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace zero_import {

// What is wrong with a file, in words.
class Defect : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The directory is not of this format; the message says what was looked for.
class NotFound : public Defect {
 public:
  using Defect::Defect;
};

struct SourceFile {
  std::string path;
  uint64_t num_bytes = 0;
};

struct Source {
  std::vector<SourceFile> files;  // sorted by path
  // Exactly that many bytes, which the file has.
  std::function<void(uint32_t file, uint64_t offset, uint64_t num_bytes, void* out)> read;

  // Index of the path, or -1.
  int64_t find(std::string_view path) const {
    for (size_t i = 0; i < files.size(); ++i)
      if (files[i].path == path) return static_cast<int64_t>(i);
    return -1;
  }
  std::string text(uint32_t file, uint64_t offset, uint64_t num_bytes) const {
    std::string bytes(num_bytes, '\0');
    read(file, offset, num_bytes, bytes.data());
    return bytes;
  }
};

// A name out of a file, for a message: short and printable.
inline std::string shown(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > 80 ? "…'" : "'");
}

// Little-endian.
template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[at + i]));
  return value;
}

}  // namespace zero_import
