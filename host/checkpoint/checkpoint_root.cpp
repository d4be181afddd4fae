// Listing, choosing, locking and pruning the checkpoints of a directory.
#include "host/checkpoint/checkpoint_root.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/staged_directory.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest", kBest[] = "best";
constexpr char kLock[] = ".lock";
std::string defect_of_sizes(SourceDirectory& directory, const CheckpointManifest& manifest) {
  for (const auto& file : manifest.files) {
    const int64_t found = directory.find_file(file.path);
    if (found < 0) return "'" + file.path + "' is missing";
    const uint64_t num_bytes = directory.files()[static_cast<size_t>(found)].num_bytes;
    if (num_bytes != file.num_bytes)
      return "'" + file.path + "' has " + std::to_string(num_bytes) + " bytes, the manifest says " +
             std::to_string(file.num_bytes);
  }
  return "";
}

void describe_contents(CheckpointInfo& info) {
  const PathKind kind = path_kind(info.path);
  if (kind == PathKind::kAbsent) {
    std::error_code error;
    const std::string target = fs::read_symlink(info.path, error).string();
    throw storage_error("it is a link to '" + printable(target) + "', which does not exist");
  }
  if (kind != PathKind::kDirectory) throw DamagedCheckpoint("it is not a directory");
  SourceDirectory directory(info.path);
  if (directory.find_file(kManifestName) < 0) throw DamagedCheckpoint(std::string("it has no ") + kManifestName);
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  info.step = manifest.step;
  info.created = manifest.created;
  info.format = manifest.format;
  info.resumable = manifest.resumable;
  info.num_tensors = manifest.num_tensors();
  info.num_bytes = manifest.num_bytes();
  info.defect = defect_of_sizes(directory, manifest);
  if (const auto named = step_of_name(info.name); named && *named != manifest.step)
    info.defect = names_another_step(*named, manifest.step);
}

CheckpointInfo describe(const std::string& root, const DirectoryEntry& entry) {
  CheckpointInfo info;
  info.name = entry.name;
  info.path = root + "/" + entry.name;
  info.is_link = entry.kind == PathKind::kLink;
  info.set_aside = is_set_aside_name(entry.name);
  std::sscanf(info.name.c_str(), "step-%" SCNd64, &info.step);
  try {
    describe_contents(info);
  } catch (const DamagedCheckpoint& damage) {
    info.defect = damage.message();
  } catch (const Error& error) {
    info.unreadable = error.message();
  }
  return info;
}

// A folder that is not named as a step is a checkpoint if it has a manifest.
bool has_manifest(const std::string& path) {
  try {
    return path_kind_nofollow(path + "/" + kManifestName) != PathKind::kAbsent;
  } catch (const Error&) {
    return true;  // listed as unreadable
  }
}

// Reads a symbolic link or, on file systems without links, a small file; "" if there is none. In a copy that followed
// links (cp -rL), the checkpoint itself is there, which is listed with the others.
std::string read_link(const std::string& path) {
  char target[256];
  size_t length = 0;
  switch (path_kind_nofollow(path)) {
    case PathKind::kAbsent:
    case PathKind::kDirectory:
      return {};
    case PathKind::kLink: {
      const ssize_t got = ::readlink(path.c_str(), target, sizeof target);
      if (got < 0)
        throw storage_error("cannot read the link '" + path + "': " + std::generic_category().message(errno));
      length = static_cast<size_t>(got);
      break;
    }
    default:
      length = File::open_read(path).pread_some(target, sizeof target, 0);
  }
  std::string name(target, length);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

// Returns `path` with `suffix`, and a number if needed, so that nothing exists under that name.
std::string free_name(const std::string& path, std::string_view suffix) {
  for (int i = 1;; ++i) {
    std::string aside = path + std::string(suffix) + (i == 1 ? "" : "-" + std::to_string(i));
    if (path_kind_nofollow(aside) == PathKind::kAbsent) return aside;
  }
}

// If `path` is a folder instead of a link, renames it; the folder is kept.
void make_way_for_link(const std::string& path) {
  if (path_kind_nofollow(path) != PathKind::kDirectory) return;
  const std::string aside = free_name(path, kReplacedSuffix);
  rename_durably(path, aside);
  log::warn("{} is a folder in place of a link, as cp -rL makes it, and is kept as {}", path, aside);
}

// Makes `path` a link to `target`. At every moment it names the old or the new target.
void make_link(const std::string& path, const std::string& target) {
  make_way_for_link(path);
  const fs::path whole(path);
  const std::string temporary =
      (whole.parent_path() / ("." + whole.filename().string() + "." + std::to_string(::getpid()))).string();
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)  // this file system has no links
      return write_file_atomic(path, target + "\n");
    throw storage_error("cannot make the link '" + temporary + "': " + std::generic_category().message(errno));
  }
  rename_durably(temporary, path);
}

// Removes temporary links left by killed calls of make_link(directory + "/" + name, …).
void collect_temporary_links(const std::string& directory, const std::string& name) {
  for (const DirectoryEntry& entry : list_directory(directory))
    if (entry.name.starts_with("." + name + ".") && entry.kind == PathKind::kLink)
      ::unlink((directory + "/" + entry.name).c_str());
}

struct Latest {
  std::string name;  // empty: none
  std::string defect;
};

Latest read_latest(const std::string& root) {
  const std::string name = read_link(root + "/" + kLatest);
  if (name.empty() || (is_plain_path(name) && name.find('/') == name.npos)) return {name, ""};
  return {kLatest, "it names '" + printable(name) + "', which is not a checkpoint in this directory"};
}

}  // namespace

std::vector<CheckpointInfo> list_checkpoints(const std::string& root) {
  std::vector<CheckpointInfo> found;
  if (path_kind(root) == PathKind::kAbsent && path_kind_nofollow(root) == PathKind::kAbsent) return found;
  for (const DirectoryEntry& entry : list_directory(root)) {
    if (!is_plain_path(entry.name)) continue;
    const std::string path = root + "/" + entry.name;
    const bool is_named = step_of_name(entry.name) || is_set_aside_name(entry.name);
    if (!is_named && !(entry.kind == PathKind::kDirectory && has_manifest(path))) continue;
    CheckpointInfo info = describe(root, entry);
    const bool is_gone =
        !info.unreadable.empty() && path_kind_nofollow(path) == PathKind::kAbsent;  // deleted in the meantime
    if (!is_gone) found.push_back(std::move(info));
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.step != b.step ? a.step < b.step : a.name < b.name;
  });
  return found;
}

std::vector<CheckpointInfo> checkpoints_to_resume(const std::string& root) {
  std::vector<CheckpointInfo> all = list_checkpoints(root);
  std::reverse(all.begin(), all.end());
  const Latest latest = read_latest(root);
  const auto is_latest = [&](const CheckpointInfo& info) { return info.name == latest.name; };
  std::erase_if(all, [&](const CheckpointInfo& info) { return info.set_aside && !is_latest(info); });
  std::stable_partition(all.begin(), all.end(), is_latest);
  if (!latest.name.empty() && (all.empty() || !is_latest(all.front()))) {
    CheckpointInfo missing;
    missing.name = latest.name;
    missing.path = root + "/" + latest.name;
    missing.defect = std::string("'") + kLatest + "' names it, but it does not exist";
    if (!latest.defect.empty()) missing.defect = latest.defect;
    all.insert(all.begin(), missing);
  }
  return all;
}

std::optional<CheckpointInfo> use_first_intact(const std::string& root, const std::vector<CheckpointInfo>& candidates,
                                               const std::function<void(const CheckpointInfo&)>& use,
                                               const SkipCallback& on_skipped) {
  std::optional<DamagedCheckpoint> damage;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const CheckpointInfo& candidate = candidates[i];
    if (!candidate.unreadable.empty())
      throw storage_error("checkpoint '" + candidate.path + "' cannot be read: " + candidate.unreadable)
          .hint("it may be intact, so no older one is used in its place: make it readable, or move it away");
    try {
      if (!candidate.defect.empty()) throw DamagedCheckpoint("'" + candidate.path + "': " + candidate.defect);
      use(candidate);
      return candidate;
    } catch (const DamagedCheckpoint& error) {
      damage = error;
      on_skipped(candidate, error.message() + (i + 1 < candidates.size() ? "; next is '" + candidates[i + 1].name + "'"
                                                                         : "; there is no older one"));
    }
  }
  if (!damage) return std::nullopt;
  damage->hint("every checkpoint of this run is damaged; to start over, move " + root + " away");
  throw *damage;
}

std::vector<CheckpointInfo> checkpoints_after(const std::string& root, int64_t step) {
  std::vector<CheckpointInfo> found = list_checkpoints(root);
  std::erase_if(found, [&](const CheckpointInfo& info) { return !step_of_name(info.name) || info.step <= step; });
  return found;
}

std::optional<CheckpointInfo> newest_checkpoint(const std::string& root) {
  return use_first_intact(root, checkpoints_to_resume(root), [](const CheckpointInfo&) {});
}

void warn_skipped_checkpoint(const CheckpointInfo& checkpoint, const std::string& why) {
  counted_warning("checkpoint-damaged " + checkpoint.name, "checkpoint '" + checkpoint.path + "' is skipped: " + why);
}

CheckpointRoot::CheckpointRoot(std::string path) : path_(std::move(path)) {
  create_directories(path_);
  lock_ = File::open_or_create_own(path_ + "/" + kLock);
  if (::flock(lock_.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = {};
    lock_.pread_some(holder, sizeof holder - 1, 0);
    holder[std::strcspn(holder, "\n")] = '\0';
    throw storage_error("'" + path_ + "' is in use by another run, process " + (holder[0] ? holder : "unknown"))
        .hint("wait for it, stop it, or choose another run.output_dir");
  }
  char before[32] = {};
  const std::string_view held(before, lock_.pread_some(before, sizeof before, 0));
  if (held.find_first_not_of(std::string_view("0123456789\n\0", 12)) != held.npos)
    throw storage_error("'" + lock_.path() + "' is in the way: this program did not write it").hint("move it away");
  lock_.truncate(0);
  const std::string text = std::to_string(::getpid()) + "\n";
  lock_.pwrite_exact(text.data(), text.size(), 0);
  collect_leftovers();
}

void CheckpointRoot::collect_leftovers() {
  chassis::collect_leftovers(path_, "");
  collect_temporary_links(path_, kLatest);
  if (is_checkpoint_root(path_)) collect_temporary_links(fs::path(best_link()).parent_path().string(), kBest);
}

void CheckpointRoot::set_latest(const std::string& name) { make_link(path_ + "/" + kLatest, name); }

std::string CheckpointRoot::best_link() const {
  return (fs::absolute(path_).lexically_normal().parent_path() / kBest).string();
}

void CheckpointRoot::set_best(const std::string& name) {
  if (!name.empty()) return make_link(best_link(), (fs::path(path_).filename() / name).string());
  if (!best().empty()) ::unlink(best_link().c_str());
}

std::string CheckpointRoot::best() const {
  const PathKind kind = path_kind_nofollow(best_link());
  if (kind != PathKind::kLink && kind != PathKind::kFile) return "";
  const fs::path target = read_link(best_link());
  return target.parent_path() == fs::path(path_).filename() ? target.filename().string() : "";
}

std::string CheckpointRoot::set_aside(const std::string& name, std::string_view suffix) {
  const std::string from = path_ + "/" + name;
  if (name == kLatest || path_kind_nofollow(from) == PathKind::kAbsent) return "";
  const std::string aside = free_name(from, suffix);
  rename_durably(from, aside);
  return fs::path(aside).filename().string();
}

// `latest` changes first, so that it names an existing checkpoint whenever the process is killed.
std::vector<std::string> CheckpointRoot::set_aside_after(int64_t step) {
  const std::vector<CheckpointInfo> later = checkpoints_after(path_, step);
  if (later.empty()) return {};
  make_way_for_link(path_ + "/" + kLatest);
  std::string newest_left;
  for (const CheckpointInfo& info : list_checkpoints(path_))
    if (!info.set_aside && info.step <= step && info.defect.empty() && info.unreadable.empty()) newest_left = info.name;
  if (!newest_left.empty())
    set_latest(newest_left);
  else if (path_kind_nofollow(path_ + "/" + kLatest) != PathKind::kAbsent)
    ::unlink((path_ + "/" + kLatest).c_str());
  std::vector<std::string> names;
  for (const CheckpointInfo& info : later) names.push_back(set_aside(info.name, kReplacedSuffix));
  return names;
}

std::vector<std::string> CheckpointRoot::prune(int64_t keep_last, int64_t keep_every,
                                               const std::function<std::string(const CheckpointInfo&)>& defect_of) {
  std::vector<std::string> deleted;
  if (keep_last <= 0) return deleted;
  std::vector<CheckpointInfo> all = list_checkpoints(path_);
  // Damaged checkpoints and copies under other names are not counted as kept, and are left for the user.
  std::erase_if(all, [](const CheckpointInfo& info) {
    return !info.defect.empty() || !info.unreadable.empty() || info.name != step_directory_name(info.step);
  });
  if (all.size() <= static_cast<size_t>(keep_last)) return deleted;
  const std::string latest = read_latest(path_).name, best_one = best();
  int64_t num_kept = 0;
  for (size_t i = all.size(); i-- > 0;) {
    if (num_kept < keep_last) {
      const std::string defect = defect_of && i >= 1 ? defect_of(all[i]) : "";
      if (defect.empty()) {
        ++num_kept;
        continue;
      }
      counted_warning("checkpoint-damaged " + all[i].name,
                      "'" + all[i].path + "' is damaged and is not counted: " + defect);
    } else if (all[i].name != latest && all[i].name != best_one && !(keep_every > 0 && all[i].step % keep_every == 0) &&
               may_delete(all[i])) {
      deleted.push_back(all[i].name);
    }
  }
  std::reverse(deleted.begin(), deleted.end());
  std::erase_if(deleted, [this](const std::string& name) {
    try {
      unpublish_and_remove(path_, name);
      return false;
    } catch (const Error& error) {
      counted_warning("checkpoint-kept", "'" + path_ + "/" + name + "' could not be deleted: " + error.message());
      return true;
    }
  });
  return deleted;
}

bool CheckpointRoot::may_delete(const CheckpointInfo& checkpoint) const {
  std::string why;
  try {
    if (checkpoint.is_link)
      why = "it is a link to a checkpoint elsewhere";
    else if (const std::vector<std::string> foreign = foreign_files(checkpoint.path); !foreign.empty())
      why = "it holds '" + foreign.front() + "', which this program did not write";
  } catch (const Error& error) {
    why = error.message();
  }
  if (!why.empty()) counted_warning("checkpoint-kept", "'" + checkpoint.path + "' is not deleted: " + why);
  return why.empty();
}

bool is_checkpoint(const std::string& path) {
  return path_kind(path) == PathKind::kDirectory && path_kind(path + "/" + kManifestName) != PathKind::kAbsent;
}

std::string checkpoints_folder(const std::string& path) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::kAbsent) throw storage_error("there is no directory " + path);
  if (kind != PathKind::kDirectory)
    throw storage_error("'" + path + "' is a file")
        .hint("give a run directory, or a checkpoint: RUN/checkpoints/step-…");
  return path_kind_nofollow(path + "/checkpoints") != PathKind::kAbsent ? path + "/checkpoints" : path;
}

Error no_checkpoint(const std::string& path) {
  if (is_checkpoint(path) || path_kind_nofollow(path + "/config.json") != PathKind::kAbsent) {
    Error error =
        storage_error("'" + path + "' is " + (is_checkpoint(path) ? "one checkpoint or export" : "a model directory") +
                      ", not a folder of checkpoints");
    return error.hint("give the run directory; `chassis ckpt info` shows what a checkpoint holds");
  }
  Error error = storage_error("'" + path + "' has no checkpoint");
  for (const DirectoryEntry& entry : list_directory(path))
    if (is_checkpoint_root(path + "/" + entry.name + "/checkpoints"))
      return error.hint("it holds run directories: give one of them, such as " + path + "/" + entry.name);
  return error;
}

bool is_checkpoint_root(const std::string& path) {
  return fs::path(path).filename() == "checkpoints" && path_kind_nofollow(path + "/" + kLock) == PathKind::kFile;
}

void delete_checkpoint(const std::string& path) {
  check_replaceable(path, true);
  const fs::path whole = fs::path(path).lexically_normal();
  unpublish_and_remove(whole.parent_path().empty() ? "." : whole.parent_path().string(), whole.filename().string());
}

}  // namespace chassis
