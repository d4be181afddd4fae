// A directory that appears whole or not at all: made under a hidden name, filled, made durable, renamed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/file.hpp"

namespace chassis {

class StagedDirectory {
 public:
  // Makes parent/.name.inprogress-<id>, with a locked marker inside by which a later start recognises a dead one.
  // Removes those of the same name that are dead.
  StagedDirectory(const std::string& parent, const std::string& name);
  // Removes it unless it was published.
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::string& path() const { return path_; }
  // A new file of a plain path; makes its folder.
  File create(const std::string& path, unsigned mode = 0644);
  // A file that was created in such a directory, also by another rank, for writing.
  static File open(const std::string& directory, const std::string& path);
  // Files must be flushed before. `at` is called with "synced", "unmarked", "renamed". Replaces parent/name if that is
  // a checkpoint; it must have passed check_replaceable.
  void publish(bool is_of_a_run, const std::function<void(const char* stage)>& at);

 private:
  std::string parent_, name_, path_, id_;
  File marker_;
  std::vector<std::string> folders_;
  bool published_ = false;
};

// Throws unless there is nothing at the path, an empty directory, or a checkpoint with none but its own files. One of a
// training run is replaced by another such alone (CheckpointManifest::is_of_a_run).
void check_replaceable(const std::string& path, bool by_one_of_a_run);
// Files in a checkpoint directory that its manifest does not name; the manifest itself if it is damaged.
std::vector<std::string> foreign_files(const std::string& checkpoint);
// Removes hidden directories of dead saves and deletions; `name` empty: of all names. Puts back what a replacement
// moved away, if the new one did not come. What is not recognised stays, with a counted warning.
void collect_leftovers(const std::string& parent, const std::string& name);
// Renames parent/name to a hidden name, then removes it file by file, the manifest last.
void unpublish_and_remove(const std::string& parent, const std::string& name);

}  // namespace chassis
