// Files by descriptor: exact reads and writes, durable replacement. Every failure is a storage error that names the
// path, the bytes and the system's reason; what is not a regular file is refused without waiting for it.
// Rationale: a program that may meet a file size limit must ignore SIGXFSZ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace chassis {

// An open file; moves, closes itself.
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
  // For reading and writing; created if absent, never truncated.
  static File open_write(const std::string& path, unsigned mode = 0644);
  // For reading and writing, never through a symbolic link.
  static File open_own(const std::string& path);
  // The same; created if absent.
  static File open_or_create_own(const std::string& path, unsigned mode = 0644);
  static File open_directory(const std::string& path);
  // `name` inside an open directory; neither follows a symbolic link.
  static File open_read_at(const File& directory, const std::string& name);
  static File create_exclusive_at(const File& directory, const std::string& name, unsigned mode = 0644);
  static File open_directory_at(const File& directory, const std::string& name);
  // Takes over a descriptor; `path` is for messages.
  static File adopt(int descriptor, std::string path);

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

  uint64_t size() const;
  // It has no name any more: what is written to it is lost with the process.
  bool is_deleted() const;
  unsigned mode() const;  // permissions
  // Up to num_bytes; 0 at the end of the file.
  size_t pread_some(void* data, size_t num_bytes, uint64_t offset) const;
  // Fails if the file ends before.
  void pread_exact(void* data, size_t num_bytes, uint64_t offset) const;
  void pwrite_exact(const void* data, size_t num_bytes, uint64_t offset);
  // From now on the whole pages of a large write go past the page cache, if the file system can and `data` lies in its
  // page as `offset` does: no copy is made of them, and what the cache holds of other files stays there.
  void write_directly();
  bool writes_directly() const { return direct_ >= 0; }
  // Reserves blocks where the file system can, and sets the size.
  void preallocate(uint64_t num_bytes);
  void truncate(uint64_t num_bytes);
  void fsync();
  // Like the destructor, but reports a failure of the system's delayed writes.
  void close();

 private:
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  void write_buffered(const char* data, size_t num_bytes, uint64_t offset);
  size_t write_direct(const char* data, size_t num_bytes, uint64_t offset);
  void close_direct() noexcept;

  int descriptor_ = -1;
  int direct_ = -1;  // the same file, open past the page cache
  std::string path_;
};

enum class PathKind { kAbsent, kFile, kDirectory, kLink, kOther };
// What the path leads to, links followed; never kLink. Only a path that does not exist is absent: one that cannot be
// looked at (EACCES, EIO, ESTALE …) is a storage error.
PathKind path_kind(const std::string& path);
// What stands at the path itself.
PathKind link_kind(const std::string& path);

struct DirectoryEntry {
  std::string name;
  PathKind kind;  // as link_kind says
};
// All entries but "." and "..", sorted by name. Throws where it cannot read on.
std::vector<DirectoryEntry> list_directory(const std::string& path);

// The whole file. Refuses more than max_bytes before it reads them.
std::string read_file(const std::string& path, uint64_t max_bytes = uint64_t{64} << 20);
// The old content or the new is there at every moment, also after a power failure. A file that is
// replaced keeps its permissions; what is there and not a regular file, a link included, is refused.
void write_file_atomic(const std::string& path, std::string_view bytes, unsigned mode = 0644);
std::string host_name();
// The same for all processes of a machine since it was started, also in its containers.
std::string machine_id();
// What a file is called until it is whole. Of this process alone, also where machines share the folder.
std::string unfinished_name(const std::string& path);
void fsync_directory(const std::string& path);
// Renames within a file system and makes it durable.
void rename_durably(const std::string& from, const std::string& to);
void create_directories(const std::string& path);
// Bytes that an unprivileged process may still write beside `path`.
uint64_t free_bytes(const std::string& path);

}  // namespace chassis
