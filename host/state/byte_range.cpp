// Loops over the runs of a box.
#include "host/state/byte_range.hpp"

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {

ByteRanges::ByteRanges(const Box& box, const Shape& global_shape, int64_t element_bytes, int64_t base)
    : first_(base), run_bytes_(element_bytes) {
  CHASSIS_CHECK(box.ndim() == global_shape.ndim(), "box and tensor have different numbers of dims");
  if (box.empty()) return;
  int64_t stride = element_bytes;
  bool merging = true;
  std::array<int64_t, Shape::kMaxDims> counts{}, strides{};
  int loops = 0;
  num_runs_ = 1;
  for (int k = box.ndim() - 1; k >= 0; --k) {
    CHASSIS_CHECK(box.begin[k] >= 0 && box.end[k] <= global_shape[k], "box outside the tensor");
    const int64_t size = box.end[k] - box.begin[k];
    first_ += box.begin[k] * stride;
    if (merging) {
      run_bytes_ *= size;
      merging = size == global_shape[k];
    } else if (size > 1) {
      counts[static_cast<size_t>(loops)] = size;
      strides[static_cast<size_t>(loops++)] = stride;
      num_runs_ *= size;
    }
    stride *= global_shape[k];
  }
  std::reverse(counts.begin(), counts.begin() + loops);
  std::reverse(strides.begin(), strides.begin() + loops);
  counts_ = Shape(std::span<const int64_t>(counts.data(), static_cast<size_t>(loops)));
  strides_ = Shape(std::span<const int64_t>(strides.data(), static_cast<size_t>(loops)));
}

ByteRange ByteRanges::span() const {
  if (empty()) return {first_, 0};
  int64_t last = first_;
  for (int k = 0; k < counts_.ndim(); ++k) last += (counts_[k] - 1) * strides_[k];
  return {first_, last + run_bytes_ - first_};
}

bool ByteRanges::cut_at_multiples_of(int64_t bytes, int64_t end) const {
  if (empty() || bytes <= 1) return true;
  if (first_ % bytes != 0) return false;
  for (int64_t stride : strides_)
    if (stride % bytes != 0) return false;
  return run_bytes_ % bytes == 0 || (contiguous() && first_ + run_bytes_ == end);
}

ByteRanges::Iterator& ByteRanges::Iterator::operator++() {
  ++run_;
  for (int k = ranges_->counts_.ndim() - 1; k >= 0; --k) {
    int64_t& at = at_[static_cast<size_t>(k)];
    offset_ += ranges_->strides_[k];
    if (++at < ranges_->counts_[k]) break;
    offset_ -= at * ranges_->strides_[k];
    at = 0;
  }
  return *this;
}

ByteRanges::Iterator ByteRanges::Iterator::operator++(int) {
  Iterator before = *this;
  ++*this;
  return before;
}

}  // namespace chassis
