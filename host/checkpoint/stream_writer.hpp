// The pipeline of a save: the caller fills one bucket while a thread writes the other to its places in the files.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/thread.hpp"
#include "host/checkpoint/bucket.hpp"

namespace chassis {

class StreamWriter {
 public:
  explicit StreamWriter(const BucketPair& buckets);
  // Data that was not flushed is lost.
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // Returns room for at most num_bytes, a multiple of `element_bytes`, that will be written at `offset` of `file`. The
  // caller fills all of it before the next call. Rethrows the error of an earlier write. Files must live until flush().
  std::span<std::byte> reserve(File& file, uint64_t offset, uint64_t num_bytes, uint64_t element_bytes = 1);
  // Returns after every byte has been passed to the system.
  void flush();

 private:
  struct Segment {
    File* file;
    uint64_t offset;
    uint64_t begin;  // offset in the bucket
    uint64_t num_bytes;
  };

  void align_to(const File& file, uint64_t offset, uint64_t element_bytes);
  void submit();
  void run();
  void write_all() const;
  void rethrow();

  const BucketPair& buckets_;
  int filling_ = 0;
  uint64_t filled_bytes_ = 0;
  std::vector<Segment> segments_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_work_ = false, stopping_ = false;
  int writing_ = 0;
  std::vector<Segment> to_write_;
  std::exception_ptr failure_;
  Thread thread_;
};

}  // namespace chassis
