// The bytes of a box within a row-major tensor, as the smallest number of contiguous runs, computed one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>

#include "host/state/box.hpp"

namespace chassis {

struct ByteRange {
  int64_t offset = 0;
  int64_t length = 0;
  bool operator==(const ByteRange&) const = default;
};

class ByteRanges {
 public:
  // `base` is the offset of the tensor's first byte, in a file or in memory.
  ByteRanges(const Box& box, const Shape& global_shape, int64_t element_bytes, int64_t base = 0);

  int64_t size() const { return num_runs_; }
  bool empty() const { return num_runs_ == 0; }
  bool contiguous() const { return num_runs_ == 1; }
  int64_t run_bytes() const { return run_bytes_; }
  int64_t total_bytes() const { return num_runs_ * run_bytes_; }
  // The range from the first byte to the last one, including the gaps between runs.
  ByteRange span() const;
  // True if all offsets and lengths are multiples of `bytes`. A single run may have any length if it ends at `end`.
  bool cut_at_multiples_of(int64_t bytes, int64_t end) const;

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = ByteRange;
    using difference_type = int64_t;
    using pointer = const ByteRange*;
    using reference = ByteRange;

    Iterator() = default;
    ByteRange operator*() const { return {offset_, ranges_->run_bytes_}; }
    Iterator& operator++();
    Iterator operator++(int);
    bool operator==(const Iterator& other) const { return run_ == other.run_; }

   private:
    friend class ByteRanges;
    Iterator(const ByteRanges* ranges, int64_t run) : ranges_(ranges), run_(run), offset_(ranges->first_) {}
    const ByteRanges* ranges_ = nullptr;
    int64_t run_ = 0;
    int64_t offset_ = 0;
    std::array<int64_t, Shape::kMaxDims> at_{};
  };

  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, num_runs_}; }

 private:
  int64_t first_ = 0;
  int64_t run_bytes_ = 0;
  int64_t num_runs_ = 0;
  Shape counts_;   // iterations of the loops around a run, outermost first
  Shape strides_;  // bytes
};

}  // namespace chassis
