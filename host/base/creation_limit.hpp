// Permissions of the files that this process creates: derived files are no more open than their sources.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// Returns those of the bits 0044 (read permission of group and others) that all these files have. Absent files do not
// count.
unsigned shared_read_mode(const std::vector<std::string>& paths);

// During its lifetime, group and others get access to what this process and its plugins create only if `mode`, the mode
// of a source, lets them read: it changes the umask. write_file_atomic() and File::open_or_create_own() also remove
// excess permissions from existing files. Limits must end in the reverse order of their construction.
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
// Removes these permissions from an existing file or folder. One that belongs to another user stays as it is.
void apply_creation_limit(const std::string& path);

}  // namespace chassis
