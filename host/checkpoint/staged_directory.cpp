// Hidden names are .<name>.<what>-<16 hex digits>, where <what> is inprogress, replaced or deleting.
#include "host/checkpoint/staged_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <system_error>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/step_name.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr char kMarker[] = ".inprogress";

std::string new_id() {
  std::random_device random;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

struct HiddenName {
  std::string name, what, id;
};

std::optional<HiddenName> parse_hidden(const std::string& text) {
  const size_t dash = text.rfind('-'), dot = text.rfind('.', dash);
  if (text.empty() || text[0] != '.' || dash == text.npos || dot == text.npos || dot == 0) return std::nullopt;
  HiddenName hidden{text.substr(1, dot - 1), text.substr(dot + 1, dash - dot - 1), text.substr(dash + 1)};
  if (hidden.id.size() != 16 || hidden.id.find_first_not_of("0123456789abcdef") != hidden.id.npos) return std::nullopt;
  if (hidden.what != "inprogress" && hidden.what != "replaced" && hidden.what != "deleting") return std::nullopt;
  return hidden;
}

// Removes all other files before the manifest, then the directory, so that the remains of a killed removal are
// recognized.
void remove_tree(const std::string& path) {
  std::error_code error;
  for (const DirectoryEntry& entry : list_directory(path)) {
    if (entry.name == kManifestName || entry.name == kMarker) continue;
    fs::remove_all(path + "/" + entry.name, error);
    if (error) throw file_error("cannot remove", path + "/" + entry.name, error.value());
  }
  for (const std::string& last : {path + "/" + kMarker, path + "/" + kManifestName, path}) {
    fs::remove(last, error);
    if (error) throw file_error("cannot remove", last, error.value());
  }
}

bool exists(const std::string& path) { return path_kind_nofollow(path) != PathKind::kAbsent; }

// True if no process holds the marker's lock: the process that made the directory has ended.
bool has_dead_marker(const std::string& path) {
  try {
    const File marker = File::open_nofollow(path + "/" + kMarker);
    return ::flock(marker.descriptor(), LOCK_EX | LOCK_NB) == 0;
  } catch (const Error&) {
    return false;
  }
}

// The directory in which another process, or this one, is writing parent/name; empty if there is none.
std::string other_writer(const std::string& parent, const std::string& name, const std::string& own) {
  for (const DirectoryEntry& entry : list_directory(parent)) {
    const auto hidden = parse_hidden(entry.name);
    const std::string path = parent + "/" + entry.name;
    if (hidden && hidden->name == name && hidden->what == "inprogress" && path != own && exists(path + "/" + kMarker) &&
        !has_dead_marker(path))
      return path;
  }
  return "";
}

bool is_empty(const std::string& path) { return list_directory(path).empty(); }

// Adds the paths in a checkpoint directory that are not in `own`.
void find_foreign(const std::string& root, const std::string& prefix, const std::set<std::string>& own,
                  std::vector<std::string>& foreign) {
  for (const DirectoryEntry& entry : list_directory(prefix.empty() ? root : root + "/" + prefix)) {
    const std::string path = prefix.empty() ? entry.name : prefix + "/" + entry.name;
    const auto next = own.lower_bound(path + "/");
    const bool holds_own = entry.kind == PathKind::kDirectory && next != own.end() && next->starts_with(path + "/");
    if (holds_own)
      find_foreign(root, path, own, foreign);
    else if (!own.contains(path))
      foreign.push_back(path);
  }
}

std::vector<std::string> foreign_files(const std::string& checkpoint, const CheckpointManifest& manifest) {
  std::set<std::string> own = {kManifestName};
  for (const auto& file : manifest.files) own.insert(file.path);
  std::vector<std::string> foreign;
  find_foreign(checkpoint, "", own, foreign);
  return foreign;
}

}  // namespace

StagedDirectory::StagedDirectory(const std::string& parent, const std::string& name)
    : parent_(parent), name_(name), id_(new_id()) {
  create_directories(parent);
  collect_leftovers(parent, name);
  path_ = parent + "/." + name + ".inprogress-" + id_;
  if (::mkdir(path_.c_str(), 0755) != 0) throw file_error("cannot create the directory", path_, errno);
  try {
    marker_ = File::create_exclusive(path_ + "/" + kMarker);
    if (::flock(marker_.descriptor(), LOCK_EX | LOCK_NB) != 0) throw file_error("cannot lock", marker_.path(), errno);
    // After locking, so that if two start at once, at least one sees the other.
    if (const std::string other = other_writer(parent, name, path_); !other.empty())
      throw storage_error("'" + parent + "/" + name + "' is being written by another process, in '" + other + "'")
          .hint("wait until it has ended, or choose another directory");
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    throw;
  }
}

StagedDirectory::~StagedDirectory() {
  if (published_) return;
  try {
    remove_tree(path_);
  } catch (const std::exception& error) {
    counted_warning("checkpoint-leftover",
                    std::string("the files of a failed save remain until the next start: ") + error.what());
  }
}

File StagedDirectory::create(const std::string& directory, const std::string& path, unsigned mode) {
  CHASSIS_CHECK(is_plain_path(path), path);
  if (const size_t slash = path.find('/'); slash != path.npos) {
    const std::string folder = directory + "/" + path.substr(0, slash);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST)
      throw file_error("cannot create the directory", folder, errno);
  }
  return File::create_exclusive(directory + "/" + path, mode);
}

File StagedDirectory::open(const std::string& directory, const std::string& path) {
  CHASSIS_CHECK(is_plain_path(path), path);
  return File::open_nofollow(directory + "/" + path);
}

void StagedDirectory::publish(bool is_run_checkpoint, const std::function<void(const char* stage)>& on_stage) {
  const std::string target = parent_ + "/" + name_;
  for (const DirectoryEntry& entry : list_directory(path_))
    if (entry.kind == PathKind::kDirectory) fsync_directory(path_ + "/" + entry.name);
  fsync_directory(path_);
  on_stage("synced");
  if (::unlink((path_ + "/" + kMarker).c_str()) != 0) throw file_error("cannot remove", path_ + "/" + kMarker, errno);
  fsync_directory(path_);
  on_stage("unmarked");

  bool replaces = false;
  if (exists(target)) {
    check_replaceable(target, is_run_checkpoint);
    if (is_empty(target)) {
      if (::rmdir(target.c_str()) != 0) throw file_error("cannot remove the empty directory", target, errno);
    } else {
      replaces = true;
    }
  }
  std::string old = path_;  // the replaced checkpoint's path after the exchange
  if (!replaces) {
    rename_durably(path_, target);
  } else if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    published_ = true;
    fsync_directory(parent_);
  } else if (errno == EINVAL || errno == ENOSYS) {
    // This file system cannot exchange paths. The old checkpoint is moved away; collect_leftovers() puts it back if the
    // process is killed before the second rename.
    old = parent_ + "/." + name_ + ".replaced-" + id_;
    rename_durably(target, old);
    rename_durably(path_, target);
  } else {
    throw file_error("cannot replace", target, errno);
  }
  published_ = true;
  on_stage("renamed");
  if (!replaces) return;
  try {
    remove_tree(old);
  } catch (const Error& error) {
    counted_warning("checkpoint-leftover",
                    std::string("the files of a replaced checkpoint remain until the next start: ") + error.what());
  }
}

std::vector<std::string> foreign_files(const std::string& checkpoint) {
  std::optional<CheckpointManifest> manifest;
  try {
    SourceDirectory directory(checkpoint);
    manifest = CheckpointManifest::read(directory);
  } catch (const DamagedCheckpoint&) {
    return {kManifestName};
  }
  return foreign_files(checkpoint, *manifest);
}

void check_replaceable(const std::string& path, bool by_run_checkpoint) {
  if (!exists(path)) return;
  if (path_kind_nofollow(path) != PathKind::kDirectory)
    throw storage_error("'" + path + "' is in the way: it is not a directory");
  if (is_empty(path)) return;
  if (!exists(path + "/" + kManifestName)) {
    throw storage_error("'" + path + "' is in the way: it has no " + kManifestName +
                        ", so it is not a checkpoint of this program")
        .hint("move it away, or choose another directory");
  }
  SourceDirectory directory(path);
  CheckpointManifest manifest;
  try {
    manifest = CheckpointManifest::read(directory);
  } catch (const DamagedCheckpoint& damage) {
    throw storage_error("'" + path + "' is in the way: " + damage.message())
        .hint("move it away, or choose another directory");
  }
  if (manifest.is_run_checkpoint() && !by_run_checkpoint) {
    throw storage_error("'" + path + "' holds a checkpoint of a run, step " + std::to_string(manifest.step) +
                        ", which a model directory or an imported checkpoint cannot replace")
        .hint("choose another directory; `chassis ckpt prune` deletes checkpoints");
  }
  if (const auto named = step_of_name(fs::path(path).filename().string()); named && *named != manifest.step) {
    throw storage_error("'" + path + "' is in the way: " + names_another_step(*named, manifest.step))
        .hint("move it away, or choose another directory");
  }
  const std::vector<std::string> foreign = foreign_files(path, manifest);
  if (!foreign.empty()) {
    throw storage_error("'" + path + "' cannot be replaced: it holds '" + foreign.front() + "'" +
                        (foreign.size() > 1 ? " and " + std::to_string(foreign.size() - 1) + " other files" : "") +
                        " that this program did not write")
        .hint("move it away, or choose another directory");
  }
}

void collect_leftovers(const std::string& parent, const std::string& name) {
  for (const DirectoryEntry& entry : list_directory(parent)) {
    const auto hidden = parse_hidden(entry.name);
    if (!hidden || (!name.empty() && hidden->name != name)) continue;
    const std::string path = parent + "/" + entry.name;
    if (entry.kind != PathKind::kDirectory) continue;
    const bool is_checkpoint = exists(path + "/" + kManifestName);
    if (hidden->what == "replaced" && is_checkpoint && !exists(parent + "/" + hidden->name)) {
      rename_durably(path, parent + "/" + hidden->name);
      log::info("checkpoint {}: restored after an interrupted replacement", hidden->name);
    } else if (exists(path + "/" + kMarker) ? has_dead_marker(path) : is_checkpoint || is_empty(path)) {
      remove_tree(path);
      log::info("removed the remains of an interrupted save: {}", path);
    } else if (!exists(path + "/" + kMarker)) {
      counted_warning("checkpoint-leftover",
                      "'" + path + "' looks like an interrupted save, but is not marked as one; it is kept");
    }
  }
}

void unpublish_and_remove(const std::string& parent, const std::string& name) {
  const std::string hidden = parent + "/." + name + ".deleting-" + new_id();
  rename_durably(parent + "/" + name, hidden);
  remove_tree(hidden);
}

}  // namespace chassis
