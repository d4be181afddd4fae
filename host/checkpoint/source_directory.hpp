// An untrusted directory for reading: its regular files by relative path. Links are not followed in a checkpoint of
// this program; in a model directory, where the user or the Hugging Face cache made them, links to files are followed.
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

  // Lists two levels; leaves out entries that are hidden, are not regular files, or have no plain name. Leaves out all
  // links if manifest.json is a regular file; otherwise follows links to regular files, but not to directories. Throws
  // if an entry exists but its status cannot be read.
  explicit SourceDirectory(const std::string& path);
  SourceDirectory(const SourceDirectory&) = delete;
  SourceDirectory& operator=(const SourceDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Sorted by path.
  const std::vector<Entry>& files() const { return files_; }
  // Index of the path, or -1.
  int64_t find(std::string_view path) const;
  // The same, but throws a storage error if the path exists and was left out: a link, a FIFO, a directory.
  int64_t find_file(std::string_view path) const;
  // "'m/model.safetensors' is a FIFO, expected a file" for a left-out file whose name is a word of the text; else "".
  std::string left_out_in(std::string_view text) const;
  // The file stays open as long as this object lives.
  const File& open(size_t file);
  // The whole file. Throws if it has more than max_bytes.
  std::string read_text(std::string_view path, uint64_t max_bytes);
  // Links that were left out, by path.
  const std::vector<std::string>& links() const { return links_; }
  // The permissions of group and others that every file grants; copies and conversions get these and the owner's.
  unsigned shared_mode() const;

  // The table that scan() receives; valid as long as this object.
  chassis_directory_t table();
  // Rethrows the first failed read through the table, if there was one: the format's error is then not a defect.
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
