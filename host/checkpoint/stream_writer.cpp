// The writer thread, and the hand-over of buckets to it.
#include "host/checkpoint/stream_writer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

namespace {

// Maximum number of segments in a bucket: bounds the size of their list if the runs of a tensor are short.
constexpr size_t kMaxSegments = 1 << 16;
// Maximum number of aligned segments in a bucket: each may leave a page unused.
constexpr size_t kMaxAligned = 64;

}  // namespace

StreamWriter::StreamWriter(const BucketPair& buckets)
    : buckets_(buckets), thread_("stream writer", [this] { run(); }) {}

StreamWriter::~StreamWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::span<std::byte> StreamWriter::reserve(File& file, uint64_t offset, uint64_t num_bytes, uint64_t element_bytes) {
  CHASSIS_CHECK(num_bytes > 0 && num_bytes % element_bytes == 0, "not a whole number of elements");
  if (buckets_.bucket_bytes() - filled_bytes_ < element_bytes || segments_.size() == kMaxSegments) submit();
  const bool continues = !segments_.empty() && segments_.back().file == &file &&
                         segments_.back().offset + segments_.back().num_bytes == offset;
  if (!continues) align_to(file, offset, element_bytes);
  uint64_t room = std::min(num_bytes, buckets_.bucket_bytes() - filled_bytes_);
  room -= room % element_bytes;
  if (continues) {
    segments_.back().num_bytes += room;
  } else {
    segments_.push_back({&file, offset, filled_bytes_, room});
  }
  const std::span<std::byte> out = buckets_.bucket(filling_).subspan(filled_bytes_, room);
  filled_bytes_ += room;
  return out;
}

// Direct writes need the same offset within a page in memory and in the file. After kMaxAligned segments, segments are
// no longer aligned.
void StreamWriter::align_to(const File& file, uint64_t offset, uint64_t element_bytes) {
  if (!file.writes_directly() || segments_.size() >= kMaxAligned) return;
  const uint64_t skipped = (offset - filled_bytes_) % File::kPageBytes;
  if (filled_bytes_ + skipped + element_bytes <= buckets_.bucket_bytes()) filled_bytes_ += skipped;
}

void StreamWriter::submit() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !has_work_; });
  rethrow();
  std::swap(to_write_, segments_);
  segments_.clear();
  writing_ = filling_;
  has_work_ = true;
  filling_ = 1 - filling_;
  filled_bytes_ = 0;
  lock.unlock();
  changed_.notify_all();
}

void StreamWriter::flush() {
  if (!segments_.empty()) submit();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !has_work_; });
  rethrow();
}

void StreamWriter::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StreamWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return has_work_ || stopping_; });
    if (stopping_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      write_all();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    has_work_ = false;
    changed_.notify_all();
  }
}

void StreamWriter::write_all() const {
  for (const Segment& segment : to_write_)
    segment.file->pwrite_exact(buckets_.bucket(writing_).data() + segment.begin, segment.num_bytes, segment.offset);
  // Starts the write-back now, so that the final fsync has little to do. It is only a hint: fsync reports failures.
  for (size_t first = 0, last; first < to_write_.size(); first = last) {
    File* const file = to_write_[first].file;
    uint64_t begin = to_write_[first].offset, end = begin;
    for (last = first; last < to_write_.size() && to_write_[last].file == file; ++last) {
      begin = std::min(begin, to_write_[last].offset);
      end = std::max(end, to_write_[last].offset + to_write_[last].num_bytes);
    }
    ::sync_file_range(file->descriptor(), static_cast<off64_t>(begin), static_cast<off64_t>(end - begin),
                      SYNC_FILE_RANGE_WRITE);
  }
}

}  // namespace chassis
