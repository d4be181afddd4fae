// Replacements of the C library's file functions, which make the system calls themselves.
#include "file_calls.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <mutex>

namespace chassis::testing {
namespace {

std::recursive_mutex mutex;  // one call at a time; an observer may touch files itself
FileCallObserver* observer = nullptr;
std::string observed_root;
bool inside = false;  // an observer's own calls are not observed

std::string path_of(int descriptor) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::syscall(SYS_readlink, link.c_str(), path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "";
}

std::string path_at(int directory, const char* path) {
  if (path[0] == '/') return path;
  if (directory == AT_FDCWD) return std::filesystem::current_path().string() + "/" + path;
  return path_of(directory) + "/" + path;
}

bool is_observed(const std::string& path) {
  return observer != nullptr && !inside && (path == observed_root || path.starts_with(observed_root + "/"));
}

// Runs `act`, and notifies the observer if it observes the path. `act` returns -1 with errno set if it fails.
template <class Act>
auto observe(FileCall call, Act&& act) -> decltype(act(call)) {
  const std::lock_guard lock(mutex);
  if (!is_observed(call.path)) return act(call);
  inside = true;
  const int error = observer->before(call);
  inside = false;
  if (error != 0) {
    errno = error;
    return -1;
  }
  const auto result = act(call);
  if (result >= 0) {
    const int kept = errno;
    inside = true;
    observer->after(call);
    inside = false;
    errno = kept;
  }
  return result;
}

template <class Act>
auto observe_reading(FileCall call, Act&& act) -> decltype(act(call)) {
  {
    const std::lock_guard lock(mutex);
    if (observer == nullptr || inside || !observer->sees_reading()) return act(call);
  }
  return observe(std::move(call), act);
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  const auto open = [&](const FileCall&) {
    return static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
  };
  const std::string whole = path_at(directory, path);
  struct stat info;
  const bool creates = (flags & O_CREAT) != 0 && ::lstat(whole.c_str(), &info) != 0;
  if (!creates) return observe_reading({FileCall::Kind::kOpen, whole}, open);
  return observe({FileCall::Kind::kCreate, whole}, open);
}

int unlink_at(int directory, const char* path, int flags) {
  return observe({FileCall::Kind::kUnlink, path_at(directory, path)},
                 [&](const FileCall&) { return static_cast<int>(::syscall(SYS_unlinkat, directory, path, flags)); });
}

int rename_at(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) {
  FileCall call{flags != 0 ? FileCall::Kind::kExchange : FileCall::Kind::kRename, path_at(from_directory, from)};
  call.to = path_at(to_directory, to);
  return observe(call, [&](const FileCall&) {
    return static_cast<int>(::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
  });
}

}  // namespace

const char* name_of(FileCall::Kind kind) {
  constexpr const char* kNames[] = {"create", "mkdir",    "write",  "resize", "sync",
                                    "rename", "exchange", "unlink", "link",   "close",
                                    "open",   "look",     "read",   "readlink", "list"};
  return kNames[static_cast<size_t>(kind)];
}

ObservedFileCalls::ObservedFileCalls(const std::string& root, FileCallObserver& by) {
  const std::lock_guard lock(mutex);
  observed_root = root;
  observer = &by;
}
ObservedFileCalls::~ObservedFileCalls() {
  const std::lock_guard lock(mutex);
  observer = nullptr;
}

}  // namespace chassis::testing

using chassis::testing::FileCall;
using Kind = chassis::testing::FileCall::Kind;
namespace observed = chassis::testing;

extern "C" {

int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return observed::open_at(directory, path, flags, mode);
}
int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return observed::open_at(AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int descriptor, const void* data, size_t num_bytes, off_t offset) {
  FileCall call{Kind::kWrite, observed::path_of(descriptor)};
  call.data = data;
  call.num_bytes = num_bytes;
  call.offset = static_cast<uint64_t>(offset);
  return observed::observe(call, [&](const FileCall& allowed) -> ssize_t {
    return ::syscall(SYS_pwrite64, descriptor, data, static_cast<size_t>(allowed.num_bytes), offset);
  });
}

int ftruncate(int descriptor, off_t size) noexcept {
  FileCall call{Kind::kResize, observed::path_of(descriptor)};
  call.num_bytes = static_cast<uint64_t>(size);
  return observed::observe(
      call, [&](const FileCall&) { return static_cast<int>(::syscall(SYS_ftruncate, descriptor, size)); });
}
int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  FileCall call{Kind::kResize, observed::path_of(descriptor)};
  call.num_bytes = static_cast<uint64_t>(offset + length);
  return observed::observe(call, [&](const FileCall&) {
    return static_cast<int>(::syscall(SYS_fallocate, descriptor, mode, offset, length));
  });
}

ssize_t pread(int descriptor, void* data, size_t num_bytes, off_t offset) {
  return observed::observe_reading({Kind::kRead, observed::path_of(descriptor)}, [&](const FileCall&) -> ssize_t {
    return ::syscall(SYS_pread64, descriptor, data, num_bytes, offset);
  });
}
int fstatat(int directory, const char* path, struct stat* info, int flags) noexcept {
  return observed::observe_reading({Kind::kLook, observed::path_at(directory, path)}, [&](const FileCall&) {
    return static_cast<int>(::syscall(SYS_newfstatat, directory, path, info, flags));
  });
}
ssize_t readlink(const char* path, char* target, size_t num_bytes) noexcept {
  const auto read = [&](const FileCall&) -> ssize_t {
    return ::syscall(SYS_readlinkat, AT_FDCWD, path, target, num_bytes);
  };
  return observed::observe_reading({Kind::kReadLink, observed::path_at(AT_FDCWD, path)}, read);
}
dirent* readdir(DIR* stream) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  dirent* entry = nullptr;
  observed::observe_reading({Kind::kList, observed::path_of(::dirfd(stream))}, [&](const FileCall&) {
    entry = real(stream);
    return 0;
  });
  return entry;
}

int fsync(int descriptor) {
  return observed::observe({Kind::kSync, observed::path_of(descriptor)},
                           [&](const FileCall&) { return static_cast<int>(::syscall(SYS_fsync, descriptor)); });
}
// A failed close has closed the descriptor anyway.
int close(int descriptor) {
  const std::string path = observed::path_of(descriptor);
  const int closed = static_cast<int>(::syscall(SYS_close, descriptor));
  if (closed != 0) return closed;
  return observed::observe({Kind::kClose, path}, [](const FileCall&) { return 0; });
}

int rename(const char* from, const char* to) noexcept { return observed::rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) noexcept {
  return observed::rename_at(from_directory, from, to_directory, to, flags);
}
int unlink(const char* path) noexcept { return observed::unlink_at(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return observed::unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int directory, const char* path, int flags) noexcept {
  return observed::unlink_at(directory, path, flags);
}
int remove(const char* path) noexcept {
  struct stat info;
  const bool is_directory = ::lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
  return observed::unlink_at(AT_FDCWD, path, is_directory ? AT_REMOVEDIR : 0);
}
int mkdir(const char* path, mode_t mode) noexcept {
  return observed::observe({Kind::kMakeDirectory, observed::path_at(AT_FDCWD, path)}, [&](const FileCall&) {
    return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  });
}
int symlink(const char* target, const char* path) noexcept {
  FileCall call{Kind::kLink, observed::path_at(AT_FDCWD, path)};
  call.to = target;
  return observed::observe(
      call, [&](const FileCall&) { return static_cast<int>(::syscall(SYS_symlinkat, target, AT_FDCWD, path)); });
}

}  // extern "C"
