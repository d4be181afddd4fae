// The lines of a file to which another process appends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace chassis {

class FollowedFile {
 public:
  explicit FollowedFile(std::string path) : path_(std::move(path)) {}

  struct Poll {
    bool exists = false;
    bool restarted = false;  // the file was truncated or replaced, and is read from its beginning
    uint64_t num_lines = 0;  // new lines
  };
  // Calls `line` for each line that is complete and new; the text excludes its line break, and at least 64 bytes after
  // it may be read. `restart` is called before them if the file has been truncated or replaced. An incomplete last line
  // is left for the next call. Lines longer than 16 MiB are passed as empty. Throws a storage error if the file cannot
  // be read or is not a regular file.
  Poll poll(const std::function<void(std::string_view text, uint64_t number)>& line,
            const std::function<void()>& restart);

  const std::string& path() const { return path_; }
  double time() const { return time_; }              // when it was last written, in seconds since 1970; 0: unknown
  uint64_t num_lines() const { return num_lines_; }  // read so far

 private:
  std::string path_;
  uint64_t offset_ = 0, num_lines_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  double time_ = 0.0;
};

}  // namespace chassis
