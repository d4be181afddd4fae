// Files by descriptor: exact reads and writes, durable replacement. Every failure is a storage error that names the
// path, the bytes and the system's reason. Anything but a regular file is refused without blocking.
// A program that may exceed a file size limit must ignore SIGXFSZ to get the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {

// "<what> '<path>': <the system's reason>". `error` is an errno.
Error file_error(const std::string& what, const std::string& path, int error);

// An open file. It can be moved, and the destructor closes it.
class File {
 public:
  static constexpr uint64_t kPageBytes = 4096;

  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  static File open_read(const std::string& path);
  // Fails if the file exists.
  static File create_exclusive(const std::string& path, unsigned mode = 0644);
  // Opens for reading and writing; creates the file if absent, never truncates it.
  static File open_write(const std::string& path, unsigned mode = 0644);
  // Opens for reading and writing; refuses a symbolic link.
  static File open_nofollow(const std::string& path);
  // Like open_nofollow(), but creates the file if absent.
  static File open_or_create_own(const std::string& path, unsigned mode = 0644);
  static File open_directory(const std::string& path);
  // `name` inside an open directory. These do not follow symbolic links.
  static File open_read_at(const File& directory, const std::string& name);
  static File create_exclusive_at(const File& directory, const std::string& name, unsigned mode = 0644);
  static File open_directory_at(const File& directory, const std::string& name);
  // Takes over a descriptor; `path` is for messages.
  static File adopt(int descriptor, std::string path);

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

  uint64_t size() const;
  // True if no name leads to the file any more: its content is lost when the process ends.
  bool is_deleted() const;
  unsigned mode() const;  // permissions
  // Up to num_bytes; 0 at the end of the file.
  size_t pread_some(void* data, size_t num_bytes, uint64_t offset) const;
  // Fails if the file ends earlier.
  void pread_exact(void* data, size_t num_bytes, uint64_t offset) const;
  void pwrite_exact(const void* data, size_t num_bytes, uint64_t offset);
  // From now on the whole pages of large writes bypass the page cache: they are not copied, and the cached pages of
  // other files stay. Works only if the file system supports it, and if `data` and `offset` are equal modulo
  // kPageBytes.
  void write_directly();
  bool writes_directly() const { return direct_ >= 0; }
  // Reserves blocks if the file system supports it, and sets the size.
  void preallocate(uint64_t num_bytes);
  void truncate(uint64_t num_bytes);
  void fsync();
  // Like the destructor, but throws if the system's delayed writes failed.
  void close();

 private:
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  void write_buffered(const char* data, size_t num_bytes, uint64_t offset);
  size_t write_direct(const char* data, size_t num_bytes, uint64_t offset);
  void close_direct() noexcept;

  int descriptor_ = -1;
  int direct_ = -1;  // the same file, opened with O_DIRECT
  std::string path_;
};

enum class PathKind { kAbsent, kFile, kDirectory, kLink, kOther };
// The kind of file that the path leads to. Follows links, so it is never kLink. kAbsent only if the path does not
// exist; other errors of the system (EACCES, EIO, ESTALE …) are storage errors.
PathKind path_kind(const std::string& path);
// The same without following a link.
PathKind path_kind_nofollow(const std::string& path);

struct DirectoryEntry {
  std::string name;
  PathKind kind;  // links are not followed
};
// All entries but "." and "..", sorted by name. Throws if it cannot read all of them.
std::vector<DirectoryEntry> list_directory(const std::string& path);

// Reads the whole file. Refuses a file of more than max_bytes before it reads them.
std::string read_file(const std::string& path, uint64_t max_bytes = uint64_t{64} << 20);
// Writes or replaces a file. At every moment, even after a power failure, the path has the old or the new content. A
// replaced file keeps its permissions. Refuses to replace a link or anything else that is not a regular file.
void write_file_atomic(const std::string& path, std::string_view bytes, unsigned mode = 0644);
std::string host_name();
// The same for all processes of a machine until it restarts, including those in containers.
std::string machine_id();
// A temporary name for a file until it is complete. Unique to this process, even if machines share the folder.
std::string temporary_name(const std::string& path);
void fsync_directory(const std::string& path);
// Makes now the time of modification, if possible: of caches, the time of the last use. This is the kernel's time,
// which all processes share: the clock that a process reads may differ (faketime), and what it uses would look too old.
void mark_used(const std::string& path) noexcept;
// Renames within a file system; the new name survives a power failure.
void rename_durably(const std::string& from, const std::string& to);
void create_directories(const std::string& path);
// Bytes that an unprivileged process may still write to the file system of `path`.
uint64_t free_bytes(const std::string& path);

}  // namespace chassis
