// Files in memory, given to a format's scan as a directory.
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "chassis/format_source.hpp"

namespace chassis::testing {

using Files = std::map<std::string, std::string>;  // by path

// `files` must outlive it.
inline FileSource source_of(const Files& files) {
  FileSource source;
  std::vector<const std::string*> bytes;
  for (const auto& [path, content] : files) {
    source.files.push_back({path, content.size()});
    bytes.push_back(&content);
  }
  source.read = [bytes](uint32_t file, uint64_t offset, uint64_t num_bytes, void* out) {
    const std::string& content = *bytes.at(file);
    if (offset > content.size() || num_bytes > content.size() - offset) throw std::logic_error("read past the end");
    std::memcpy(out, content.data() + offset, num_bytes);
  };
  return source;
}

}  // namespace chassis::testing
