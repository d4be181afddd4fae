// A directory that is read and not trusted: its regular files by relative path. In a checkpoint of ours no link is
// followed; in a model directory, where a user or the Hugging Face cache made them, links to files are.
#pragma once

#include <cstdint>
#include <exception>
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
    unsigned mode = 0644;  // permissions
    bool is_link = false;
  };

  // Two levels deep; what is hidden, not a regular file, or oddly named is left out. Links are left out where
  // manifest.json is a regular file; elsewhere links to regular files are followed, those to directories are not.
  // Throws for what is there and cannot be looked at.
  explicit SourceDirectory(const std::string& path);
  SourceDirectory(const SourceDirectory&) = delete;
  SourceDirectory& operator=(const SourceDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Sorted by path.
  const std::vector<Entry>& files() const { return files_; }
  // Index of the path, or -1.
  int64_t find(std::string_view path) const;
  // The same. Throws a storage error for what is there, but was left out: a link, a FIFO, a directory.
  int64_t find_file(std::string_view path) const;
  // Stays open until the directory goes.
  const File& open(size_t file);
  // The whole file, which may have at most max_bytes.
  std::string read_text(std::string_view path, uint64_t max_bytes);
  // Links that were left out, by path.
  const std::vector<std::string>& links() const { return links_; }
  // What group and others may do with every file: the permissions that copies and conversions may have, for the owner's
  // are added.
  unsigned shared_mode() const;

  // The host's end of scan(); valid as long as this.
  chassis_directory_t table();
  // Throws what a read through the table failed with, if one did: then what a format says of it is no finding.
  void throw_if_unreadable() const;

 private:
  void list(const File& directory, const std::string& prefix);
  void follow_links();
  void read_for_format(size_t file, uint64_t offset, uint64_t num_bytes, void* out);

  std::string path_;
  File root_;
  std::vector<Entry> files_;
  std::map<std::string, std::string, std::less<>> left_out_;  // by path: what it is
  std::vector<std::string> links_;
  std::map<size_t, File> open_;
  std::exception_ptr read_failure_;
};

}  // namespace chassis
