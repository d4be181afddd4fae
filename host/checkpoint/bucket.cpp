// The two buckets as one anonymous mapping, counted as checkpoint memory.
#include "host/checkpoint/bucket.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/units.hpp"

namespace chassis {

BucketPair::BucketPair(uint64_t bucket_bytes)
    : bucket_bytes_((std::max(bucket_bytes, kMinBytes) + kMinBytes - 1) / kMinBytes * kMinBytes),
      counted_(2 * bucket_bytes_, MemoryCategory::kCheckpoint) {
  void* memory = ::mmap(nullptr, 2 * bucket_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ExitCode::kOutOfMemory, "cannot allocate two buckets of " + bytes_text(bucket_bytes_) + " each")
        .hint("set a smaller checkpoint.bucket_mib");
  }
  memory_ = static_cast<std::byte*>(memory);
  std::memset(memory_, 0, 2 * bucket_bytes_);
}

BucketPair::~BucketPair() { ::munmap(memory_, 2 * bucket_bytes_); }

}  // namespace chassis
