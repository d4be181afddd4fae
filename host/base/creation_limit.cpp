// The umask is process-wide, and so are the permissions that the limits withhold.
#include "host/base/creation_limit.hpp"

#include <sys/stat.h>

#include <atomic>

namespace chassis {
namespace {

// The umask has these bits too, but cannot be read without being changed.
std::atomic<unsigned> withheld{0};

}  // namespace

unsigned shared_read_mode(const std::vector<std::string>& paths) {
  unsigned mode = 0044;
  struct stat info {};
  for (const std::string& path : paths)
    if (::stat(path.c_str(), &info) == 0) mode &= info.st_mode;
  return mode;
}

CreationLimit::CreationLimit(unsigned mode) : umask_before_(::umask(0077)), withheld_before_(withheld) {
  withheld = withheld_before_ | (mode & 0040 ? 0 : 0070) | (mode & 0004 ? 0 : 0007);
  ::umask(static_cast<mode_t>(umask_before_ | withheld));
}

CreationLimit::~CreationLimit() {
  withheld = withheld_before_;
  ::umask(static_cast<mode_t>(umask_before_));
}

unsigned withheld_mode() { return withheld; }

void apply_creation_limit(const std::string& path) {
  struct stat info {};
  if (withheld == 0 || ::stat(path.c_str(), &info) != 0 || (info.st_mode & withheld) == 0) return;
  ::chmod(path.c_str(), info.st_mode & 07777 & ~static_cast<mode_t>(withheld));
}

}  // namespace chassis
