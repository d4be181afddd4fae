// A directory of checkpoints that one job owns: its lock, what is in it, what is newest, and what may be deleted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/base/file.hpp"

namespace chassis {

// "step-000500"
std::string step_directory_name(int64_t step);

struct CheckpointInfo {
  std::string name;  // of the directory
  std::string path;
  int64_t step = 0;
  std::string created;
  std::string format;
  bool resumable = false;
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
  std::string defect;  // empty: manifest and sizes are right; contents are verify's to check
};

// Published checkpoints, oldest step first; damaged ones too. Needs no lock. Empty if the directory is not there.
std::vector<CheckpointInfo> list_checkpoints(const std::string& root);
// The same, best to resume from first: the one that `latest` names, then from the highest step down.
std::vector<CheckpointInfo> checkpoints_to_resume(const std::string& root);
// The first of these that is not defective. Every one passed over is a counted warning.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& root);
// Says so, and counts it.
void pass_over(const CheckpointInfo& checkpoint, const std::string& why);

class CheckpointRoot {
 public:
  // Creates the directory, takes its lock until destroyed or the process ends, and removes what killed saves left.
  // Refuses a directory that another process has locked.
  explicit CheckpointRoot(std::string path);

  const std::string& path() const { return path_; }
  // `latest` names this checkpoint from now on; also after a power failure.
  void set_latest(const std::string& name);
  // Deletes all but the newest `keep_last` (0: none is deleted) and those of steps that `keep_every` divides (0: none),
  // never the one that `latest` names, and nothing that this program did not write: a directory with foreign files
  // stays, with a counted warning, and so does one that can not be deleted. Returns the names deleted.
  std::vector<std::string> prune(int64_t keep_last, int64_t keep_every = 0);

 private:
  void collect_leftovers();

  std::string path_;
  File lock_;
};

// Removes a published checkpoint: unpublished by one rename, then deleted file by file, its manifest last. Refuses if
// it holds files that are not in its manifest.
void delete_checkpoint(const std::string& path);

}  // namespace chassis
