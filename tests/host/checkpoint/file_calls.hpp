// The calls by which this process changes files, and those by which it reads them, seen and, if a test wants, failed:
// the executable's own pwrite, fsync, rename … stand in front of the C library's for everything linked into it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace chassis::testing {

struct FileCall {
  enum class Kind { kCreate, kMakeDirectory, kWrite, kResize, kSync, kRename, kExchange, kUnlink, kLink, kClose,
                    kOpen, kLook, kRead, kReadLink, kList } kind;  // those of reading
  std::string path = {};  // absolute; of a descriptor where the call takes one
  std::string to = {};    // of a rename; the target of a link
  uint64_t offset = 0;    // of a write
  const void* data = nullptr;
  uint64_t num_bytes = 0;  // of a write; the size after a resize
};
const char* name_of(FileCall::Kind kind);

class FileCallObserver {
 public:
  virtual ~FileCallObserver() = default;
  virtual bool sees_reading() const { return false; }
  // Returns 0 to let it happen, or the errno that it fails with. May lower num_bytes of a write.
  virtual int before(FileCall& call) = 0;
  // It happened.
  virtual void after(const FileCall&) {}
};

// Calls under `root` go through the observer while this lives; one at a time. Calls of other threads too, in turn.
class ObservedFileCalls {
 public:
  ObservedFileCalls(const std::string& root, FileCallObserver& observer);
  ~ObservedFileCalls();
  ObservedFileCalls(const ObservedFileCalls&) = delete;
  ObservedFileCalls& operator=(const ObservedFileCalls&) = delete;
};

}  // namespace chassis::testing
