// Runs and dims of a copy by its strides.
#include "host/state/tile.hpp"

#include <numeric>
#include <vector>

namespace chassis {

int fastest_dim(const Copy& copy, CopySide side) {
  const Shape sizes = copy.box.sizes();
  int fastest = -1;
  for (int d = 0; d < sizes.ndim(); ++d)
    if (sizes[d] > 1 && (fastest < 0 || (copy.*side).strides[d] < (copy.*side).strides[fastest])) fastest = d;
  return std::max(fastest, 0);
}

bool runs_agree(const Copy& copy) {
  const Shape sizes = copy.box.sizes();
  for (int d = sizes.ndim() - 1; d >= 0; --d)
    if (sizes[d] > 1) return copy.from.strides[d] == 1 && copy.to.strides[d] == 1;
  return true;
}

Copy in_order_of(CopySide side, const Copy& copy) {
  std::vector<int> order(static_cast<size_t>(copy.box.ndim()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return (copy.*side).strides[a] > (copy.*side).strides[b]; });
  Copy out = copy;
  for (int d = 0; d < copy.box.ndim(); ++d) {
    const int from = order[static_cast<size_t>(d)];
    out.box.begin[d] = copy.box.begin[from];
    out.box.end[d] = copy.box.end[from];
    out.from.strides[d] = copy.from.strides[from];
    out.to.strides[d] = copy.to.strides[from];
  }
  return out;
}

}  // namespace chassis
