// A directory that is read and not trusted: its regular files by relative path, opened without following links.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/format.h"
#include "host/base/file.hpp"

namespace chassis {

// "model-00001-of-00002.safetensors", "sharded/x": one or two plain names of [A-Za-z0-9._-], none starting with a dot.
bool is_plain_path(std::string_view path);

class SourceDirectory {
 public:
  struct Entry {
    std::string path;  // relative
    uint64_t num_bytes = 0;
  };

  // Two levels deep; what is hidden, not a regular file, or oddly named is left out. A link is left out too, except for
  // those of the Hugging Face cache, snapshots/<revision>/<name> → ../../blobs/<hash>.
  explicit SourceDirectory(const std::string& path);
  SourceDirectory(const SourceDirectory&) = delete;
  SourceDirectory& operator=(const SourceDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Sorted by path.
  const std::vector<Entry>& files() const { return files_; }
  // Index of the path, or -1.
  int64_t find(std::string_view path) const;
  // Stays open until the directory goes.
  const File& open(size_t file);
  // The whole file, which may have at most max_bytes.
  std::string read_text(std::string_view path, uint64_t max_bytes);
  // Links that were left out, by path.
  const std::vector<std::string>& links() const { return links_; }

  // The host's end of scan(); valid as long as this.
  chassis_directory_t table();

 private:
  void list(const File& directory, const std::string& prefix);
  bool add_hub_link(const File& directory, const std::string& name);

  std::string path_;
  File root_;
  std::vector<Entry> files_;
  std::map<std::string, std::string, std::less<>> blobs_;  // of the Hugging Face cache: path → target
  std::vector<std::string> links_;
  std::map<size_t, File> open_;
};

}  // namespace chassis
