// Lists with fstatat and opens relative to the directory, so that a link made later is not followed.
#include "host/checkpoint/source_directory.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "host/base/error.hpp"
#include "host/checkpoint/disk_box.hpp"
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
  // A new descriptor, since fdopendir takes ownership.
  const int descriptor = ::openat(directory.descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (stream == nullptr) {
    const int error = errno;
    if (descriptor >= 0) ::close(descriptor);
    throw file_error("cannot list the directory", directory.path(), error);
  }
  const std::unique_ptr<DIR, int (*)(DIR*)> owned(stream, ::closedir);
  std::vector<std::string> names;
  for (errno = 0; const dirent* entry = ::readdir(stream); errno = 0) names.emplace_back(entry->d_name);
  if (errno != 0) throw file_error("cannot list the directory", directory.path(), errno);
  return names;
}

std::string link_target(const File& directory, const std::string& name) {
  std::string target(4096, '\0');
  const ssize_t length = ::readlinkat(directory.descriptor(), name.c_str(), target.data(), target.size());
  target.resize(length < 0 ? 0 : static_cast<size_t>(length));
  return target;
}

std::string kind_text(mode_t mode) {
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISDIR(mode)) return "a directory";
  return "a device";
}

// Returns false if the entry no longer exists.
bool stat_entry(const File& directory, const std::string& name, int flags, struct stat& info) {
  if (::fstatat(directory.descriptor(), name.c_str(), &info, flags) == 0) return true;
  if (errno != ENOENT) throw file_error("cannot access", directory.path() + "/" + name, errno);
  return false;
}

}  // namespace

bool is_plain_path(std::string_view path) {
  const size_t slash = path.find('/');
  if (slash == path.npos) return is_plain_name(path);
  return is_plain_name(path.substr(0, slash)) && is_plain_name(path.substr(slash + 1));
}

SourceDirectory::SourceDirectory(const std::string& path) : path_(path), root_(File::open_directory(path)) {
  list(root_, "");
  const auto is_manifest = [](const Entry& entry) { return entry.path == kManifestName; };
  if (std::none_of(files_.begin(), files_.end(), is_manifest)) follow_links();
  std::sort(files_.begin(), files_.end(), [](const Entry& a, const Entry& b) { return a.path < b.path; });
  std::sort(links_.begin(), links_.end());
}

void SourceDirectory::list(const File& directory, const std::string& prefix) {
  for (const std::string& name : names_in(directory)) {
    struct stat info {};
    if (!is_plain_name(name) || !stat_entry(directory, name, AT_SYMLINK_NOFOLLOW, info)) continue;
    if (S_ISREG(info.st_mode)) {
      files_.push_back({prefix + name, static_cast<uint64_t>(info.st_size), info.st_mode & 0777});
    } else if (S_ISDIR(info.st_mode) && prefix.empty()) {
      left_out_[name] = kind_text(info.st_mode);
      list(File::open_directory_at(directory, name), name + "/");
    } else if (S_ISLNK(info.st_mode)) {
      links_.push_back(prefix + name);
      left_out_[prefix + name] = "a link to '" + link_target(directory, name) + "'";
    } else {
      left_out_[prefix + name] = kind_text(info.st_mode);
    }
    if (files_.size() > kMaxFiles) {
      throw storage_error("'" + path_ + "' has more than " + std::to_string(kMaxFiles) + " files");
    }
  }
}

void SourceDirectory::follow_links() {
  for (const std::string& path : std::exchange(links_, {})) {
    struct stat info {};
    if (path == kManifestName) {  // else the directory would count as a checkpoint, in which no link is followed
      links_.push_back(path);
    } else if (!stat_entry(root_, path, 0, info)) {
      left_out_[path] += ", which does not exist";
      links_.push_back(path);
    } else if (S_ISREG(info.st_mode)) {
      left_out_.erase(path);
      files_.push_back({path, static_cast<uint64_t>(info.st_size), info.st_mode & 0777, true});
    } else {
      left_out_[path] += ", " + kind_text(info.st_mode);
      links_.push_back(path);
    }
  }
}

int64_t SourceDirectory::find(std::string_view path) const {
  const auto it = std::lower_bound(files_.begin(), files_.end(), path,
                                   [](const Entry& entry, std::string_view wanted) { return entry.path < wanted; });
  return it != files_.end() && it->path == path ? it - files_.begin() : -1;
}

int64_t SourceDirectory::find_file(std::string_view path) const {
  const int64_t file = find(path);
  const auto left_out = left_out_.find(path);
  if (file < 0 && left_out != left_out_.end())
    throw storage_error("'" + path_ + "/" + std::string(path) + "' is " + left_out->second + ", expected a file");
  return file;
}

std::string SourceDirectory::left_out_in(std::string_view text) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" ,;:'\"", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    const auto left_out = left_out_.find(word);
    if (left_out != left_out_.end() && word.find('.') != word.npos)
      return "'" + path_ + "/" + left_out->first + "' is " + left_out->second + ", expected a file";
    begin = end + 1;
  }
  return "";
}

const File& SourceDirectory::open(size_t file) {
  const auto it = open_.find(file);
  if (it != open_.end()) return it->second;
  const std::string& path = files_.at(file).path;
  const size_t slash = path.find('/');
  File opened;
  if (files_[file].is_link) {
    opened = File::open_read(path_ + "/" + path);
  } else if (slash != path.npos) {
    const File folder = File::open_directory_at(root_, path.substr(0, slash));
    opened = File::open_read_at(folder, path.substr(slash + 1));
  } else {
    opened = File::open_read_at(root_, path);
  }
  if (opened.size() != files_[file].num_bytes) {
    throw storage_error("'" + opened.path() + "' has " + std::to_string(opened.size()) + " bytes, " +
                        std::to_string(files_[file].num_bytes) + " when it was listed: something else is writing it");
  }
  return open_.emplace(file, std::move(opened)).first->second;
}

std::string SourceDirectory::read_text(std::string_view path, uint64_t max_bytes) {
  const int64_t file = find_file(path);
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

unsigned SourceDirectory::shared_mode() const {
  unsigned mode = 0044;
  for (const Entry& file : files_) mode &= file.mode;
  return mode;
}

void SourceDirectory::throw_if_unreadable() const {
  if (read_failure_) std::rethrow_exception(read_failure_);
}

// A read past the end means that the format misread the file; all other failures come from the file system, and are
// kept in read_failure_.
void SourceDirectory::read_for_format(size_t file, uint64_t offset, uint64_t num_bytes, void* out) {
  if (file >= files_.size())
    throw internal_error("file " + std::to_string(file) + " of " + std::to_string(files_.size()));
  const Entry& entry = files_[file];
  if (offset > entry.num_bytes || num_bytes > entry.num_bytes - offset)
    throw storage_error("cannot read " + std::to_string(num_bytes) + " bytes at offset " + std::to_string(offset) +
                        " of '" + path_ + "/" + entry.path + "': it ends after " + std::to_string(entry.num_bytes) +
                        " bytes");
  try {
    open(file).pread_exact(out, num_bytes, offset);
  } catch (...) {
    if (!read_failure_) read_failure_ = std::current_exception();
    throw;
  }
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
    return guarded([&] { static_cast<SourceDirectory*>(d->impl)->read_for_format(i, offset, num_bytes, out); });
  };
  return table;
}

}  // namespace chassis
