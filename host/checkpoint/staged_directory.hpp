// A directory that appears complete or not at all: created under a hidden name, filled, synced, renamed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/file.hpp"

namespace chassis {

class StagedDirectory {
 public:
  // Creates parent/.name.inprogress-<id> with a locked marker file: a marker without a lock tells a later start that
  // the save is dead. Removes dead directories of the same name, and refuses if another one is being written.
  StagedDirectory(const std::string& parent, const std::string& name);
  // Removes it unless it was published.
  ~StagedDirectory();
  StagedDirectory(const StagedDirectory&) = delete;
  StagedDirectory& operator=(const StagedDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Creates a file with a plain path, and its folder, in such a directory, which this or another rank made.
  static File create(const std::string& directory, const std::string& path, unsigned mode = 0644);
  // Opens a file for writing that this or another rank created in such a directory.
  static File open(const std::string& directory, const std::string& path);
  // Files must be synced before. Calls `on_stage` with "synced", "unmarked", "renamed". Replaces parent/name if that is
  // a checkpoint that passes check_replaceable().
  void publish(bool is_run_checkpoint, const std::function<void(const char* stage)>& on_stage);

 private:
  std::string parent_, name_, path_, id_;
  File marker_;
  bool published_ = false;
};

// Throws unless the path does not exist, is an empty directory, or is a checkpoint without foreign files. Only a
// checkpoint of a training run may replace another (CheckpointManifest::is_run_checkpoint).
void check_replaceable(const std::string& path, bool by_run_checkpoint);
// Files in a checkpoint directory that its manifest does not name; the manifest itself if it is damaged.
std::vector<std::string> foreign_files(const std::string& checkpoint);
// Removes hidden directories of dead saves and deletions, of all names if `name` is empty. Restores a checkpoint that
// an interrupted replacement moved away. Keeps directories that it does not recognize, with a counted warning.
void collect_leftovers(const std::string& parent, const std::string& name);
// Renames parent/name to a hidden name, then removes it file by file, the manifest last.
void unpublish_and_remove(const std::string& parent, const std::string& name);

}  // namespace chassis
