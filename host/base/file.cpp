// Implements file.hpp with POSIX calls, which are retried when interrupted.
#include "host/base/file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "host/base/byte_limit.hpp"
#include "host/base/claimed_descriptors.hpp"
#include "host/base/creation_limit.hpp"
#include "host/base/descriptor_reserve.hpp"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/limit_text.hpp"
#include "host/base/pipe.hpp"
#include "host/base/units.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxTransferBytes = size_t{1} << 30;
constexpr size_t kMinDirectBytes = size_t{1} << 16;  // smaller writes are faster through the page cache

std::string amount(size_t num_bytes, uint64_t offset) {
  return std::to_string(num_bytes) + " bytes at offset " + std::to_string(offset);
}

int open_retrying(int directory, const std::string& path, int flags, unsigned mode) {
  for (;;) {
    const int descriptor = ::openat(directory, path.c_str(), flags | O_CLOEXEC, static_cast<mode_t>(mode));
    if (descriptor >= 0) claim_descriptor(descriptor);
    if (descriptor >= 0 || (errno != EINTR && errno != EMFILE && errno != ENFILE)) return descriptor;
    const int error = errno;
    if (error == EINTR || release_reserved_descriptor()) continue;
    errno = error;
    return -1;
  }
}

void close_and_refill(int descriptor) noexcept {
  ::close(descriptor);
  refill_descriptor_reserve();
}

const char* kind_text(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISLNK(mode) ? "a symbolic link" : "not a regular file";
}

PathKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return PathKind::kFile;
  if (S_ISDIR(mode)) return PathKind::kDirectory;
  return S_ISLNK(mode) ? PathKind::kLink : PathKind::kOther;
}

// Opening a FIFO or a device may block or have side effects, so the file is opened without blocking and then checked.
int open_regular(int directory, const std::string& name, int flags, const std::string& path, unsigned mode = 0,
                 bool allow_pipe = false) {
  const int descriptor = open_retrying(directory, name, flags | O_NONBLOCK | O_NOCTTY, mode);
  if (descriptor < 0) throw file_error("cannot open", path, errno);
  struct stat info {};
  const int error = ::fstat(descriptor, &info) != 0 ? errno : 0;
  if (error == 0 && (S_ISREG(info.st_mode) || (allow_pipe && S_ISFIFO(info.st_mode)))) return descriptor;
  ::close(descriptor);
  if (error != 0) throw file_error("cannot access", path, error);
  throw storage_error("cannot open '" + path + "': it is " + kind_text(info.st_mode))
      .hint(allow_pipe ? "give a regular file or a pipe" : "give a regular file");
}

PathKind kind_at(const std::string& path, int flags) {
  struct stat info {};
  if (::fstatat(AT_FDCWD, path.c_str(), &info, flags) == 0) return kind_of(info.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return PathKind::kAbsent;
  throw file_error("cannot access", path, errno);
}

std::string read_whole(const File& file, uint64_t max_bytes) {
  const auto refuse_larger = [&](uint64_t num_bytes) {
    if (num_bytes <= max_bytes) return;
    const auto [size, limit] = bytes_texts(num_bytes, max_bytes);
    throw storage_error("'" + file.path() + "' has " + (num_bytes == file.size() ? "" : "more than ") + size +
                        "; the maximum is " + limit);
  };
  refuse_larger(file.size());
  std::string bytes;
  bytes.resize(file.size());
  size_t done = 0;
  for (;;) {
    // Files that do not report their size, such as those in /proc, are read to the end too.
    if (done == bytes.size()) bytes.resize(done + std::max<size_t>(done / 2, 4096));
    const size_t got = file.pread_some(bytes.data() + done, bytes.size() - done, done);
    if (got == 0) break;
    done += got;
    refuse_larger(done);
  }
  bytes.resize(done);
  return bytes;
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

Error file_error(const std::string& what, const std::string& path, int error) {
  const std::string limit = error == EFBIG ? file_limit_text() : "";
  Error e = storage_error(what + " '" + path + "': " + std::generic_category().message(error) +
                          (limit.empty() ? "" : "; " + limit));
  if (error == ENOSPC || error == EDQUOT) e.hint("free some space, or write to another place");
  return e;
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(std::exchange(other.direct_, -1)),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close_direct();
    if (descriptor_ >= 0) close_and_refill(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    direct_ = std::exchange(other.direct_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() {
  close_direct();
  if (descriptor_ >= 0) close_and_refill(descriptor_);
}

void File::close_direct() noexcept {
  if (direct_ >= 0) close_and_refill(std::exchange(direct_, -1));
}

File File::adopt(int descriptor, std::string path) {
  claim_descriptor(descriptor);
  return File(descriptor, std::move(path));
}

File File::open_read(const std::string& path) {
  return File(open_regular(AT_FDCWD, path, O_RDONLY, path), path);
}

File File::create_exclusive(const std::string& path, unsigned mode) {
  const int descriptor = open_retrying(AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  if (descriptor < 0) throw file_error("cannot create", path, errno);
  return File(descriptor, path);
}

File File::open_write(const std::string& path, unsigned mode) {
  return File(open_regular(AT_FDCWD, path, O_RDWR | O_CREAT, path, mode), path);
}

File File::open_nofollow(const std::string& path) {
  return File(open_regular(AT_FDCWD, path, O_RDWR | O_NOFOLLOW, path), path);
}

File File::open_or_create_own(const std::string& path, unsigned mode) {
  File file(open_regular(AT_FDCWD, path, O_RDWR | O_CREAT | O_NOFOLLOW, path, mode), path);
  apply_creation_limit("/proc/self/fd/" + std::to_string(file.descriptor()));
  return file;
}

File File::open_directory(const std::string& path) {
  const int descriptor = open_retrying(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
  if (descriptor < 0) throw file_error("cannot open the directory", path, errno);
  return File(descriptor, path);
}

File File::open_read_at(const File& directory, const std::string& name) {
  const std::string path = directory.path() + "/" + name;
  return File(open_regular(directory.descriptor(), name, O_RDONLY | O_NOFOLLOW, path), path);
}

File File::create_exclusive_at(const File& directory, const std::string& name, unsigned mode) {
  const std::string path = directory.path() + "/" + name;
  const int descriptor = open_retrying(directory.descriptor(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  if (descriptor < 0) throw file_error("cannot create", path, errno);
  return File(descriptor, path);
}

File File::open_directory_at(const File& directory, const std::string& name) {
  const std::string path = directory.path() + "/" + name;
  const int descriptor = open_retrying(directory.descriptor(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
  if (descriptor < 0) throw file_error("cannot open the directory", path, errno);
  return File(descriptor, path);
}

uint64_t File::size() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) throw file_error("cannot find the size of", path_, errno);
  return static_cast<uint64_t>(info.st_size);
}

bool File::is_deleted() const {
  struct stat info {};
  return ::fstat(descriptor_, &info) == 0 && info.st_nlink == 0;
}

unsigned File::mode() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) throw file_error("cannot find the permissions of", path_, errno);
  return info.st_mode & 07777;
}

size_t File::pread_some(void* data, size_t num_bytes, uint64_t offset) const {
  for (;;) {
    const ssize_t got = ::pread(descriptor_, data, std::min(num_bytes, kMaxTransferBytes), static_cast<off_t>(offset));
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) throw file_error("cannot read " + amount(num_bytes, offset) + " of", path_, errno);
  }
}

void File::pread_exact(void* data, size_t num_bytes, uint64_t offset) const {
  auto* out = static_cast<char*>(data);
  for (size_t done = 0; done < num_bytes;) {
    const size_t got = pread_some(out + done, num_bytes - done, offset + done);
    if (got == 0) {
      throw storage_error("cannot read " + amount(num_bytes, offset) + " of '" + path_ + "': it ends after " +
                          std::to_string(size()) + " bytes");
    }
    done += got;
  }
}

void File::write_directly() {
  if (direct_ < 0)
    direct_ = open_retrying(AT_FDCWD, "/proc/self/fd/" + std::to_string(descriptor_), O_WRONLY | O_DIRECT, 0);
}

void File::pwrite_exact(const void* data, size_t num_bytes, uint64_t offset) {
  const auto* in = static_cast<const char*>(data);
  const size_t head = (kPageBytes - offset % kPageBytes) % kPageBytes;
  const size_t body = num_bytes > head ? (num_bytes - head) / kPageBytes * kPageBytes : 0;
  const bool is_aligned = (reinterpret_cast<uintptr_t>(in) + head) % kPageBytes == 0;
  if (direct_ < 0 || !is_aligned || body < kMinDirectBytes) return write_buffered(in, num_bytes, offset);
  write_buffered(in, head, offset);
  const size_t done = head + write_direct(in + head, body, offset + head);
  write_buffered(in + done, num_bytes - done, offset + done);
}

void File::write_buffered(const char* data, size_t num_bytes, uint64_t offset) {
  for (size_t done = 0; done < num_bytes;) {
    const ssize_t put = ::pwrite(descriptor_, data + done, std::min(num_bytes - done, kMaxTransferBytes),
                                 static_cast<off_t>(offset + done));
    if (put < 0) {
      if (errno == EINTR) continue;
      throw file_error("cannot write " + amount(num_bytes, offset) + " of", path_, errno);
    }
    done += static_cast<size_t>(put);
  }
}

// Writes whole pages, bypassing the page cache. Returns the number of bytes written; fewer if the file system does not
// support it.
size_t File::write_direct(const char* data, size_t num_bytes, uint64_t offset) {
  size_t done = 0;
  while (done < num_bytes) {
    const ssize_t put = ::pwrite(direct_, data + done, std::min(num_bytes - done, kMaxTransferBytes),
                                 static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL) break;
    if (put < 0) throw file_error("cannot write " + amount(num_bytes, offset) + " of", path_, errno);
    done += static_cast<size_t>(put);
    if (done % kPageBytes != 0) return done;
  }
  if (done < num_bytes) close_direct();
  return done;
}

void File::preallocate(uint64_t num_bytes) {
  if (num_bytes == 0) return truncate(0);
  for (;;) {
    if (::fallocate(descriptor_, 0, 0, static_cast<off_t>(num_bytes)) == 0) break;
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) {
      throw file_error("cannot reserve " + bytes_text(num_bytes) + " for", path_, errno);
    }
    break;
  }
  truncate(num_bytes);
}

void File::truncate(uint64_t num_bytes) {
  while (::ftruncate(descriptor_, static_cast<off_t>(num_bytes)) != 0) {
    if (errno != EINTR)
      throw file_error("cannot set the size to " + std::to_string(num_bytes) + " bytes of", path_, errno);
  }
}

void File::fsync() {
  while (::fsync(descriptor_) != 0) {
    if (errno != EINTR) throw file_error("cannot flush to disk", path_, errno);
  }
}

void File::close() {
  close_direct();
  const int descriptor = std::exchange(descriptor_, -1);
  const int error = descriptor >= 0 && ::close(descriptor) != 0 ? errno : 0;
  refill_descriptor_reserve();
  if (error != 0 && error != EINTR) throw file_error("cannot close", path_, error);
}

PathKind path_kind(const std::string& path) { return kind_at(path, 0); }

PathKind path_kind_nofollow(const std::string& path) { return kind_at(path, AT_SYMLINK_NOFOLLOW); }

std::vector<DirectoryEntry> list_directory(const std::string& path) {
  const int descriptor = open_retrying(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);
  if (descriptor < 0) throw file_error("cannot list the directory", path, errno);
  const auto close_directory = [](DIR* directory) {
    ::closedir(directory);
    refill_descriptor_reserve();
  };
  const std::unique_ptr<DIR, decltype(close_directory)> directory(::fdopendir(descriptor), close_directory);
  if (!directory) {
    const int error = errno;
    close_and_refill(descriptor);
    throw file_error("cannot list the directory", path, error);
  }
  std::vector<DirectoryEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr && errno != 0) throw file_error("cannot list the directory", path, errno);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    struct stat info {};
    if (::fstatat(::dirfd(directory.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0)
      entries.push_back({name, kind_of(info.st_mode)});
    else if (errno != ENOENT)  // ENOENT: removed in the meantime
      throw file_error("cannot access", path + "/" + name, errno);
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

std::string read_file(const std::string& path, uint64_t max_bytes) {
  return read_whole(File::open_read(path), max_bytes);
}

std::string read_file_or_pipe(const std::string& path, uint64_t max_bytes, std::chrono::milliseconds timeout) {
  const File file = File::adopt(open_regular(AT_FDCWD, path, O_RDONLY, path, 0, /*allow_pipe=*/true), path);
  struct stat info {};
  if (::fstat(file.descriptor(), &info) != 0) throw file_error("cannot access", path, errno);
  if (S_ISREG(info.st_mode)) return read_whole(file, max_bytes);
  std::string bytes;
  for (;;) {
    // Polls before it reads: a FIFO that has no writer yet would look like an empty one.
    pollfd awaited{file.descriptor(), POLLIN, 0};
    const int ready = ::poll(&awaited, 1, static_cast<int>(timeout.count()));
    if (ready < 0 && errno != EINTR) throw file_error("cannot wait for", path, errno);
    if (ready == 0) {
      throw storage_error("nothing was written to '" + path + "' within " + std::to_string(timeout.count()) + " ms")
          .hint("it is a pipe: start its writer first, or give a regular file");
    }
    const size_t done = bytes.size();
    bytes.resize(done + 65536);
    const ssize_t got = ::read(file.descriptor(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno != EINTR && errno != EAGAIN) throw file_error("cannot read", path, errno);
    bytes.resize(done + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (bytes.size() > max_bytes)
      throw storage_error("'" + path + "' gives more than the maximum of " + bytes_text(max_bytes));
    if (got == 0) return bytes;
  }
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, HOST_NAME_MAX);
  return name;
}

std::string machine_id() {
  constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
  return ::access(kBootId, R_OK) == 0 ? read_file(kBootId) : host_name();
}

// Containers on one machine have different host names, but may use the same process ids.
std::string temporary_name(const std::string& path) {
  char host[9];
  std::snprintf(host, sizeof host, "%08x", static_cast<unsigned>(hash64(host_name() + machine_id(), 0)));
  return path + ".tmp." + host + "." + std::to_string(::getpid());
}

void write_file_atomic(const std::string& path, std::string_view bytes, unsigned mode) {
  struct stat before {};
  bool replaces = false;
  if (::lstat(path.c_str(), &before) == 0) {
    if (!S_ISREG(before.st_mode))
      throw storage_error("cannot replace '" + path + "': it is " + kind_text(before.st_mode))
          .hint("give the path of a regular file, or one that does not exist");
    replaces = true;
    mode = before.st_mode & 0777 & ~withheld_mode();
  } else if (errno != ENOENT) {
    throw file_error("cannot access", path, errno);
  }
  const std::string temporary = temporary_name(path);
  ::unlink(temporary.c_str());
  try {
    File file = File::create_exclusive(temporary, mode);
    if (replaces && ::fchmod(file.descriptor(), mode) != 0)
      throw file_error("cannot set the permissions of", temporary, errno);
    file.pwrite_exact(bytes.data(), bytes.size(), 0);
    file.fsync();
    file.close();
    rename_durably(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void mark_used(const std::string& path) noexcept { ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0); }

void fsync_directory(const std::string& path) { File::open_directory(path).fsync(); }

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw file_error("cannot rename '" + from + "' to", to, errno);
  fsync_directory(parent_of(to));
}

void create_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw file_error("cannot create the directory", path, error.value());
}

uint64_t free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) throw file_error("cannot find the free space at", path, errno);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace chassis
