// A directory of checkpoints that one job owns: its lock, what is in it, what is newest, and what may be deleted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {

// "step-000500"
std::string step_directory_name(int64_t step);

// What names of checkpoints that were set aside end in: of one that is damaged, of one that a run left behind when it
// went on from an older one.
inline constexpr std::string_view kDamagedEnd = ".damaged", kReplacedEnd = ".replaced";

struct CheckpointInfo {
  std::string name;  // of the directory
  std::string path;
  int64_t step = 0;
  std::string created;
  std::string format;
  bool resumable = false;
  bool is_link = false;    // to a checkpoint elsewhere: read, never deleted
  bool set_aside = false;  // found damaged before, or left by a run that went on from an older one, and renamed
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
  std::string defect;      // it was read and is wrong; empty: manifest and sizes are right, contents were not read
  std::string unreadable;  // it could not be read, so nothing is known of it
};

// Oldest step first: directories with a manifest, and whatever is named as a step is, damaged and unreadable ones too.
// Needs no lock. Empty if the directory is not there; throws if it cannot be read.
std::vector<CheckpointInfo> list_checkpoints(const std::string& root);

// Those to go on from, best first: the one that `latest` names, then from the highest step down. Not those set aside.
// If what `latest` names is not there, an entry for it comes first, with that as its defect.
std::vector<CheckpointInfo> checkpoints_to_resume(const std::string& root);

using PassedOver = std::function<void(const CheckpointInfo& checkpoint, const std::string& why)>;
// Says so, and counts it.
void pass_over(const CheckpointInfo& checkpoint, const std::string& why);

// Gives `use` one after the other. The next one is tried if one is defective, or `use` throws DamagedCheckpoint for it;
// `passed_over` hears why, and what is next. Returns the one that was used; nothing if there are none. Throws at one
// that is unreadable, since it may be whole, and if all are defective: a run goes on or stops, it never starts anew.
std::optional<CheckpointInfo> use_best(const std::string& root, const std::vector<CheckpointInfo>& candidates,
                                       const std::function<void(const CheckpointInfo&)>& use,
                                       const PassedOver& passed_over = pass_over);
// Those named as a step later than `step`, oldest first, whole or not.
std::vector<CheckpointInfo> checkpoints_after(const std::string& root, int64_t step);
// The best by manifest and sizes, contents unseen.
std::optional<CheckpointInfo> newest_checkpoint(const std::string& root);

class CheckpointRoot {
 public:
  // Creates the directory, takes its lock until destroyed or the process ends, and removes what killed saves left.
  // Refuses a directory that another process has locked.
  explicit CheckpointRoot(std::string path);

  const std::string& path() const { return path_; }
  // `latest` names this checkpoint from now on; also after a power failure.
  void set_latest(const std::string& name);
  // Renames a checkpoint to <name><why>, or <name><why>-2 …: it is kept for people to look at, is not resumed from,
  // counted or deleted any more, and is not in the way of a new one. Returns the new name; "" if nothing is there.
  std::string set_aside(const std::string& name, std::string_view why = kDamagedEnd);
  // Sets all steps after `step` aside as replaced; `latest` names what is left. Returns their new names.
  std::vector<std::string> set_aside_after(int64_t step);
  // Deletes all but the newest `keep_last` (0: none is deleted) and those of steps that `keep_every` divides (0: none),
  // never the one that `latest` names, and nothing that this program did not write: a directory with foreign files
  // stays, with a counted warning, and so does one that cannot be deleted, and a link. With `defect_of`, which says
  // what is wrong with a checkpoint's contents, only whole ones count as kept. Returns the names deleted.
  std::vector<std::string> prune(int64_t keep_last, int64_t keep_every = 0,
                                 const std::function<std::string(const CheckpointInfo&)>& defect_of = {});

 private:
  void collect_leftovers();
  bool may_delete(const CheckpointInfo& checkpoint) const;

  std::string path_;
  File lock_;
};

// Whether this directory is a checkpoint, or an export: it has a manifest.
bool is_checkpoint(const std::string& path);
// Where the checkpoints of a run directory lie, or of their folder itself. Throws a storage error for what is no
// directory.
std::string folder_of_checkpoints(const std::string& path);
// The error for a path that holds none: what it is instead, and what to give.
Error no_checkpoint(const std::string& path);

// Whether CheckpointRoot has made this a directory of checkpoints.
bool is_checkpoint_root(const std::string& path);

// Removes a published checkpoint: unpublished by one rename, then deleted file by file, its manifest last. Refuses if
// it holds files that are not in its manifest.
void delete_checkpoint(const std::string& path);

}  // namespace chassis
