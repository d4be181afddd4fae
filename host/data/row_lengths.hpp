// How many positions of a row are computed: all of them, or those up to the longest row of a micro-batch, rounded up to
// one of a few lengths, so that kernels and memory see few sizes.
#pragma once

#include <cstdint>
#include <vector>

namespace chassis {

class RowLengths {
 public:
  // Lengths are multiples of `multiple`, or seq_len itself: 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320 …
  // With 0 every row has seq_len.
  explicit RowLengths(int64_t seq_len, int64_t multiple = 0) : seq_len_(seq_len), multiple_(multiple) {}

  bool vary() const { return multiple_ != 0; }
  // The smallest length that holds `longest` positions, which are at most seq_len.
  int64_t holding(int64_t longest) const;
  // All lengths, in ascending order.
  std::vector<int64_t> all() const;

 private:
  int64_t after(int64_t length) const;

  int64_t seq_len_, multiple_;
};

}  // namespace chassis
