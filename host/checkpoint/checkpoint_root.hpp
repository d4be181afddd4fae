// A directory of checkpoints that one job owns: its lock, its list of checkpoints, the newest one, and pruning.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/checkpoint/step_name.hpp"

namespace chassis {

struct CheckpointInfo {
  std::string name;  // the directory's name
  std::string path;
  int64_t step = 0;
  std::string created;
  std::string format;
  bool resumable = false;
  bool is_link = false;    // a link to a checkpoint elsewhere: read, never deleted
  bool set_aside = false;  // renamed earlier with one of the suffixes above
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
  std::string defect;      // what is wrong with it; empty: manifest and sizes are right, contents were not read
  std::string unreadable;  // why it could not be read; its state is then unknown
};

// Oldest step first: directories with a manifest, and every entry named as a step, damaged and unreadable ones too.
// Needs no lock. Empty if the directory does not exist; throws if it cannot be read.
std::vector<CheckpointInfo> list_checkpoints(const std::string& root);

// Checkpoints to resume from, best first: the one that `latest` names, then from the highest step down, without those
// set aside. If `latest` names a checkpoint that does not exist, an entry for it comes first, with that as its defect.
std::vector<CheckpointInfo> checkpoints_to_resume(const std::string& root);

using SkipCallback = std::function<void(const CheckpointInfo& checkpoint, const std::string& why)>;
// Logs that the checkpoint is skipped, as a counted warning.
void warn_skipped_checkpoint(const CheckpointInfo& checkpoint, const std::string& why);

// Calls `use` with the first candidate that has no defect; if `use` throws DamagedCheckpoint, tries the next one.
// `on_skipped` receives each skipped one, with the reason and the next candidate. Returns the one that was used, or
// nothing if there are no candidates. Throws if one is unreadable, since it may be intact, and if all are defective: a
// run resumes or stops; it never starts over.
std::optional<CheckpointInfo> use_first_intact(const std::string& root, const std::vector<CheckpointInfo>& candidates,
                                               const std::function<void(const CheckpointInfo&)>& use,
                                               const SkipCallback& on_skipped = warn_skipped_checkpoint);
// Checkpoints named as a step later than `step`, oldest first, damaged ones too.
std::vector<CheckpointInfo> checkpoints_after(const std::string& root, int64_t step);
// The best checkpoint to resume from, by manifest and sizes; its contents are not read.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& root);

class CheckpointRoot {
 public:
  // Creates the directory, holds its lock until destroyed or the process ends, and removes the remains of killed saves.
  // Refuses a directory that another process has locked.
  explicit CheckpointRoot(std::string path);

  const std::string& path() const { return path_; }
  // Makes `latest` name this checkpoint, durably.
  void set_latest(const std::string& name);
  // Makes the link `best` beside this directory name the checkpoint, durably; "" removes the link.
  void set_best(const std::string& name);
  // The checkpoint that `best` names; "" if there is none.
  std::string best() const;
  // Renames a checkpoint to <name><suffix>, or <name><suffix>-2 …. It is kept for the user to inspect, is no longer
  // resumed from, counted or deleted, and leaves its name free. Returns the new name; "" if there is no such
  // checkpoint.
  std::string set_aside(const std::string& name, std::string_view suffix = kDamagedSuffix);
  // Sets all steps after `step` aside as replaced; `latest` then names the newest one left. Returns their new names.
  std::vector<std::string> set_aside_after(int64_t step);
  // Deletes all but the newest `keep_last` (0: deletes none) and the steps that `keep_every` divides (0: no such
  // steps). Counts and deletes only directories with the name that a save gives them, not copies under other names.
  // Never deletes those that `latest` and `best` name. Links, directories with files that this program did not write,
  // and those that cannot be deleted are kept, with a counted warning. With `defect_of`, which returns what is wrong
  // with a checkpoint's contents, only intact ones count as kept. Returns the names deleted.
  std::vector<std::string> prune(int64_t keep_last, int64_t keep_every = 0,
                                 const std::function<std::string(const CheckpointInfo&)>& defect_of = {});

 private:
  void collect_leftovers();
  bool may_delete(const CheckpointInfo& checkpoint) const;
  std::string best_link() const;

  std::string path_;
  File lock_;
};

// True if this directory is a checkpoint or an export, that is, if it has a manifest.
bool is_checkpoint(const std::string& path);
// The folder of checkpoints of a run directory, or `path` itself if it has no such folder. Throws a storage error if
// `path` is not a directory.
std::string checkpoints_folder(const std::string& path);
// The error for a path without checkpoints: says what it is instead, and what path to give.
Error no_checkpoint(const std::string& path);

// Whether CheckpointRoot has made this a directory of checkpoints.
bool is_checkpoint_root(const std::string& path);

// Removes a published checkpoint: hides it by one rename, then deletes it file by file, its manifest last. Refuses if
// it holds files that are not in its manifest.
void delete_checkpoint(const std::string& path);

}  // namespace chassis
