// Each length exceeds the one before it by at most a quarter, rounded up to a multiple.
#include "host/data/row_lengths.hpp"

#include <algorithm>
#include <bit>

namespace chassis {
namespace {

// From a power of two to the next.
constexpr int64_t kLengthsPerDoubling = 4;

}  // namespace

int64_t RowLengths::after(int64_t length) const {
  if (!vary() || length >= seq_len_) return seq_len_;
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(length, 1))));
  const int64_t step = (power / kLengthsPerDoubling + multiple_ - 1) / multiple_ * multiple_;
  return std::min(length + std::max(step, multiple_), seq_len_);
}

int64_t RowLengths::holding(int64_t longest) const {
  int64_t length = after(0);
  while (length < longest && length < seq_len_) length = after(length);
  return length;
}

std::vector<int64_t> RowLengths::all() const {
  std::vector<int64_t> lengths = {after(0)};
  while (lengths.back() < seq_len_) lengths.push_back(after(lengths.back()));
  return lengths;
}

}  // namespace chassis
