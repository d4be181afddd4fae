// Derived files are no more open than their sources: permissions of what this process creates.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// What group and others may read of all these files, of the bits 0044. Files that are absent do not count.
unsigned shared_read_mode(const std::vector<std::string>& paths);

// During its lifetime group and others get no more access to what this process and its plugins create than a source of
// mode `mode` gives them to read: it changes the umask. write_file_atomic() and File::open_or_create_own() take from
// files that exist what exceeds it. Limits end in the opposite order of their beginning.
class CreationLimit {
 public:
  explicit CreationLimit(unsigned mode);
  ~CreationLimit();
  CreationLimit(const CreationLimit&) = delete;
  CreationLimit& operator=(const CreationLimit&) = delete;

 private:
  unsigned umask_before_, withheld_before_;
};

// The permissions that the limits in force withhold.
unsigned withheld_mode();
// Takes these from a file or folder that exists. One of another user stays as it is.
void apply_creation_limit(const std::string& path);

}  // namespace chassis
