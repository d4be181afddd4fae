#include "host/checkpoint/checkpoint_root.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/checkpoint/manifest.hpp"
#include "host/checkpoint/staged_directory.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";
constexpr char kLock[] = ".lock";

CheckpointInfo describe(const std::string& root, const std::string& name) {
  CheckpointInfo info;
  info.name = name;
  info.path = root + "/" + name;
  try {
    SourceDirectory directory(info.path);
    const CheckpointManifest manifest = CheckpointManifest::read(directory);
    info.step = manifest.step;
    info.created = manifest.created;
    info.format = manifest.format;
    info.resumable = manifest.resumable;
    info.num_tensors = manifest.num_tensors();
    info.num_bytes = manifest.num_bytes();
    for (const auto& file : manifest.files) {
      const int64_t found = directory.find(file.path);
      if (found < 0) {
        info.defect = "'" + file.path + "' is missing";
      } else if (const uint64_t num_bytes = directory.files()[static_cast<size_t>(found)].num_bytes;
                 num_bytes != file.num_bytes) {
        info.defect = "'" + file.path + "' has " + std::to_string(num_bytes) + " bytes, the manifest says " +
                      std::to_string(file.num_bytes);
      }
    }
  } catch (const Error& error) {
    info.defect = error.message();
    std::sscanf(name.c_str(), "step-%" SCNd64, &info.step);
  }
  return info;
}

// The name in `latest`: of a symbolic link or, where there are none, of a small file. Empty if there is none.
std::string read_latest(const std::string& root) {
  const std::string path = root + "/" + kLatest;
  char target[256];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof target);
  std::string name;
  if (length > 0) {
    name.assign(target, static_cast<size_t>(length));
  } else if (errno == EINVAL) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0) return "";
    const File file = File::adopt(descriptor, path);
    name.assign(target, file.pread_some(target, sizeof target, 0));
    while (!name.empty() && name.back() == '\n') name.pop_back();
  }
  const bool is_name = is_plain_path(name) && name.find('/') == name.npos;
  if (!name.empty() && !is_name)
    counted_warning("checkpoint-latest", "'" + path + "' names no checkpoint; it is ignored");
  return is_name ? name : "";
}

}  // namespace

std::string step_directory_name(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%06" PRId64, step);
  return name;
}

std::vector<CheckpointInfo> list_checkpoints(const std::string& root) {
  std::vector<CheckpointInfo> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_plain_path(name) || !fs::is_directory(entry.symlink_status(error))) continue;
    if (fs::exists(entry.path() / kManifestName, error)) found.push_back(describe(root, name));
  }
  std::sort(found.begin(), found.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    return a.step != b.step ? a.step < b.step : a.name < b.name;
  });
  return found;
}

std::vector<CheckpointInfo> checkpoints_to_resume(const std::string& root) {
  std::vector<CheckpointInfo> all = list_checkpoints(root);
  std::reverse(all.begin(), all.end());
  const std::string latest = read_latest(root);
  const auto is_latest = [&](const CheckpointInfo& info) { return info.name == latest; };
  std::stable_partition(all.begin(), all.end(), is_latest);
  if (!latest.empty() && (all.empty() || !is_latest(all.front()))) {
    counted_warning("checkpoint-latest", "'" + root + "/" + kLatest + "' names '" + latest + "', which is not there");
  }
  return all;
}

std::optional<CheckpointInfo> newest_checkpoint(const std::string& root) {
  for (const CheckpointInfo& info : checkpoints_to_resume(root)) {
    if (info.defect.empty()) return info;
    pass_over(info, info.defect);
  }
  return std::nullopt;
}

void pass_over(const CheckpointInfo& checkpoint, const std::string& why) {
  counted_warning("checkpoint-damaged " + checkpoint.name, "checkpoint '" + checkpoint.path + "' is passed over: " + why);
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
  lock_.truncate(0);
  const std::string text = std::to_string(::getpid()) + "\n";
  lock_.pwrite_exact(text.data(), text.size(), 0);
  collect_leftovers();
}

void CheckpointRoot::collect_leftovers() {
  chassis::collect_leftovers(path_, "");
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".latest.") && entry.is_symlink(error)) fs::remove(entry.path(), error);
  }
}

void CheckpointRoot::set_latest(const std::string& name) {
  const std::string temporary = path_ + "/.latest." + std::to_string(::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(name.c_str(), temporary.c_str()) != 0) {
    return write_file_atomic(path_ + "/" + kLatest, name + "\n");  // a file system without links
  }
  rename_durably(temporary, path_ + "/" + kLatest);
}

std::vector<std::string> CheckpointRoot::prune(int64_t keep_last, int64_t keep_every) {
  std::vector<std::string> deleted;
  if (keep_last <= 0) return deleted;
  std::vector<CheckpointInfo> all = list_checkpoints(path_);
  // Damaged ones do not count towards those that are kept, and are left for people to look at.
  std::erase_if(all, [](const CheckpointInfo& info) { return !info.defect.empty(); });
  const std::string latest = read_latest(path_);
  for (size_t i = 0; i + static_cast<size_t>(keep_last) < all.size(); ++i) {
    if (all[i].name == latest || (keep_every > 0 && all[i].step % keep_every == 0)) continue;
    const std::vector<std::string> foreign = foreign_files(all[i].path);
    if (!foreign.empty()) {
      counted_warning("checkpoint-kept", "'" + all[i].path + "' is not deleted: it holds '" + foreign.front() +
                                             "', which this program did not write");
      continue;
    }
    try {
      unpublish_and_remove(path_, all[i].name);
      deleted.push_back(all[i].name);
    } catch (const Error& error) {
      counted_warning("checkpoint-kept", "'" + all[i].path + "' could not be deleted: " + error.message());
    }
  }
  return deleted;
}

void delete_checkpoint(const std::string& path) {
  check_replaceable(path);
  const fs::path whole = fs::path(path).lexically_normal();
  unpublish_and_remove(whole.parent_path().empty() ? "." : whole.parent_path().string(), whole.filename().string());
}

}  // namespace chassis
