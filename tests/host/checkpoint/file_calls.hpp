// Observes the calls of this process that change or read files, and lets a test make them fail: the executable defines
// its own pwrite, fsync, rename …, which replace the C library's for all code linked into it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace chassis::testing {

struct FileCall {
  enum class Kind {
    kCreate,
    kMakeDirectory,
    kWrite,
    kResize,
    kSync,
    kRename,
    kExchange,
    kUnlink,
    kLink,
    kClose,
    kOpen,
    kLook,
    kRead,
    kReadLink,
    kList
  } kind;                 // kOpen to kList: calls that read
  std::string path = {};  // absolute; the descriptor's path if the call takes a descriptor
  std::string to = {};    // the new name in a rename; the target of a link
  uint64_t offset = 0;    // for a write
  const void* data = nullptr;
  uint64_t num_bytes = 0;  // for a write; for a resize, the new size
};
const char* name_of(FileCall::Kind kind);

class FileCallObserver {
 public:
  virtual ~FileCallObserver() = default;
  virtual bool sees_reading() const { return false; }
  // Returns 0 to allow the call, or the errno with which it fails. May lower num_bytes of a write.
  virtual int before(FileCall& call) = 0;
  // Called after the call succeeded.
  virtual void after(const FileCall&) {}
};

// While this object exists, the observer sees the calls under `root`, from all threads, one at a time.
class ObservedFileCalls {
 public:
  ObservedFileCalls(const std::string& root, FileCallObserver& observer);
  ~ObservedFileCalls();
  ObservedFileCalls(const ObservedFileCalls&) = delete;
  ObservedFileCalls& operator=(const ObservedFileCalls&) = delete;
};

}  // namespace chassis::testing
