// One entry for each descriptor number. An entry remembers its file, since numbers are reused.
#include "host/base/claimed_descriptors.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace chassis {
namespace {

struct Owned {
  std::atomic<bool> is_own = false;
  std::atomic<uint64_t> device = 0, inode = 0;
};

// Rationale: process-wide, as descriptors are. Numbers beyond the array are not guarded.
std::array<Owned, 1 << 14> owned;

bool has_entry(int descriptor) { return descriptor >= 0 && static_cast<size_t>(descriptor) < owned.size(); }

}  // namespace

void claim_descriptor(int descriptor) noexcept {
  struct stat now {};
  if (!has_entry(descriptor) || ::fstat(descriptor, &now) != 0) return;
  Owned& entry = owned[static_cast<size_t>(descriptor)];
  entry.device = now.st_dev;
  entry.inode = now.st_ino;
  entry.is_own = true;
}

void unclaim_descriptor(int descriptor) noexcept {
  if (has_entry(descriptor)) owned[static_cast<size_t>(descriptor)].is_own = false;
}

bool is_claimed_descriptor(int descriptor) noexcept {
  if (!has_entry(descriptor)) return false;
  const Owned& entry = owned[static_cast<size_t>(descriptor)];
  struct stat now {};
  return entry.is_own && ::fstat(descriptor, &now) == 0 && now.st_dev == entry.device && now.st_ino == entry.inode;
}

void claim_open_descriptors(bool only_connections) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    struct stat now {};
    if (entry->d_name[0] == '.' || descriptor == ::dirfd(folder) || ::fstat(descriptor, &now) != 0) continue;
    const bool is_connection = S_ISSOCK(now.st_mode) || (now.st_mode & S_IFMT) == 0;  // 0: an epoll or event descriptor
    if (is_connection || !only_connections) claim_descriptor(descriptor);
  }
  ::closedir(folder);
}

}  // namespace chassis
