// The memory of a save or a load: two buckets, allocated when the run starts, so that saving allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/service/memory.hpp"

namespace chassis {

class BucketPair {
 public:
  static constexpr uint64_t kMinBytes = 4096;
  static constexpr uint64_t kUsualBytes = 16 << 20;  // for verbs that read a checkpoint outside a run

  // Rounds up to whole pages, and writes to each so that the memory is resident.
  explicit BucketPair(uint64_t bucket_bytes);
  ~BucketPair();
  BucketPair(const BucketPair&) = delete;
  BucketPair& operator=(const BucketPair&) = delete;

  uint64_t bucket_bytes() const { return bucket_bytes_; }
  std::span<std::byte> bucket(int i) const {
    return {memory_ + static_cast<uint64_t>(i) * bucket_bytes_, bucket_bytes_};
  }

 private:
  const uint64_t bucket_bytes_;
  const MemoryCharge counted_;
  std::byte* memory_ = nullptr;
};

}  // namespace chassis
