#include "host/checkpoint/source_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "host/base/error.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxFiles = 1'000'000;

bool is_plain_name(std::string_view name) {
  if (name.empty() || name.front() == '.' || name.size() > 255) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '.' || c == '_' || c == '-';
  });
}

std::vector<std::string> names_in(const File& directory) {
  // A descriptor of its own: fdopendir takes it over.
  const int descriptor = ::openat(directory.descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (stream == nullptr) {
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    throw storage_error("can not list the directory '" + directory.path() +
                        "': " + std::generic_category().message(error));
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> owned(stream, ::closedir);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  return names;
}

std::string link_target(const File& directory, const std::string& name) {
  std::string target(4096, '\0');
  const ssize_t length = ::readlinkat(directory.descriptor(), name.c_str(), target.data(), target.size());
  target.resize(length < 0 ? 0 : static_cast<size_t>(length));
  return target;
}

// "../../blobs/<40 or 64 hexadecimal digits>"
bool is_hub_blob(std::string_view target) {
  constexpr std::string_view kBlobs = "../../blobs/";
  if (!target.starts_with(kBlobs)) return false;
  target.remove_prefix(kBlobs.size());
  return (target.size() == 40 || target.size() == 64) && target.find_first_not_of("0123456789abcdef") == target.npos;
}

}  // namespace

bool is_plain_path(std::string_view path) {
  const size_t slash = path.find('/');
  if (slash == path.npos) return is_plain_name(path);
  return is_plain_name(path.substr(0, slash)) && is_plain_name(path.substr(slash + 1));
}

SourceDirectory::SourceDirectory(const std::string& path) : path_(path), root_(File::open_directory(path)) {
  list(root_, "");
  std::sort(files_.begin(), files_.end(), [](const Entry& a, const Entry& b) { return a.path < b.path; });
  std::sort(links_.begin(), links_.end());
}

void SourceDirectory::list(const File& directory, const std::string& prefix) {
  for (const std::string& name : names_in(directory)) {
    struct stat info {};
    if (!is_plain_name(name) || ::fstatat(directory.descriptor(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (S_ISREG(info.st_mode)) {
      files_.push_back({prefix + name, static_cast<uint64_t>(info.st_size)});
    } else if (S_ISDIR(info.st_mode) && prefix.empty()) {
      list(File::open_directory_at(directory, name), name + "/");
    } else if (S_ISLNK(info.st_mode) && !(prefix.empty() && add_hub_link(directory, name))) {
      links_.push_back(prefix + name);
    }
    if (files_.size() > kMaxFiles) {
      throw storage_error("'" + path_ + "' has more than " + std::to_string(kMaxFiles) + " files");
    }
  }
}

bool SourceDirectory::add_hub_link(const File& directory, const std::string& name) {
  const std::string target = link_target(directory, name);
  struct stat info {};
  if (!is_hub_blob(target) || ::fstatat(directory.descriptor(), target.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return false;
  if (!S_ISREG(info.st_mode)) return false;
  files_.push_back({name, static_cast<uint64_t>(info.st_size)});
  blobs_.emplace(name, target);
  return true;
}

int64_t SourceDirectory::find(std::string_view path) const {
  const auto it = std::lower_bound(files_.begin(), files_.end(), path,
                                   [](const Entry& entry, std::string_view wanted) { return entry.path < wanted; });
  return it != files_.end() && it->path == path ? it - files_.begin() : -1;
}

const File& SourceDirectory::open(size_t file) {
  const auto it = open_.find(file);
  if (it != open_.end()) return it->second;
  const std::string& path = files_.at(file).path;
  const size_t slash = path.find('/');
  File opened;
  if (slash != path.npos) {
    const File folder = File::open_directory_at(root_, path.substr(0, slash));
    opened = File::open_read_at(folder, path.substr(slash + 1));
  } else {
    const auto blob = blobs_.find(path);
    opened = File::open_read_at(root_, blob == blobs_.end() ? path : blob->second);
  }
  if (opened.size() != files_[file].num_bytes) {
    throw storage_error("'" + opened.path() + "' has " + std::to_string(opened.size()) + " bytes, " +
                        std::to_string(files_[file].num_bytes) + " when it was listed: something else is writing it");
  }
  return open_.emplace(file, std::move(opened)).first->second;
}

std::string SourceDirectory::read_text(std::string_view path, uint64_t max_bytes) {
  const int64_t file = find(path);
  if (file < 0) throw storage_error("there is no '" + std::string(path) + "' in '" + path_ + "'");
  const uint64_t num_bytes = files_[static_cast<size_t>(file)].num_bytes;
  if (num_bytes > max_bytes) {
    throw storage_error("'" + path_ + "/" + std::string(path) + "' has " + std::to_string(num_bytes) +
                        " bytes, at most " + std::to_string(max_bytes) + " are expected");
  }
  std::string text(num_bytes, '\0');
  open(static_cast<size_t>(file)).pread_exact(text.data(), num_bytes, 0);
  return text;
}

chassis_directory_t SourceDirectory::table() {
  chassis_directory_t table{};
  table.struct_size = sizeof table;
  table.num_files = static_cast<uint32_t>(files_.size());
  table.impl = this;
  table.entry = [](const chassis_directory_t* d, uint32_t i, chassis_str_t* path, uint64_t* num_bytes) {
    return guarded([&] {
      const auto& files = static_cast<SourceDirectory*>(d->impl)->files_;
      if (i >= files.size()) throw internal_error("file " + std::to_string(i) + " of " + std::to_string(files.size()));
      *path = str_of(files[i].path);
      *num_bytes = files[i].num_bytes;
    });
  };
  table.read = [](const chassis_directory_t* d, uint32_t i, uint64_t offset, uint64_t num_bytes, void* out) {
    return guarded([&] {
      auto& self = *static_cast<SourceDirectory*>(d->impl);
      if (i >= self.files_.size())
        throw internal_error("file " + std::to_string(i) + " of " + std::to_string(self.files_.size()));
      self.open(i).pread_exact(out, num_bytes, offset);
    });
  };
  return table;
}

}  // namespace chassis
