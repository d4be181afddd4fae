// Computes the copies from a rank of one layout of a tensor to a rank of another layout of it. For loading and saving,
// one side is a file (row_major_view).
#pragma once

#include <cstdint>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis {

struct Copy {
  Box box;           // the logical elements to copy
  StridedView from;  // in elements of the source's local tensor
  StridedView to;    // in elements of the destination's local tensor
};

// The copies that `to_rank` under `to` receives from `from_rank` under `from`. Only owners send and all holders
// receive, so that each element of the destination is written exactly once over all source ranks. Dtypes may differ.
// Throws a plugin error if shapes differ.
std::vector<Copy> copies(const Layout& from, int from_rank, const Layout& to, int to_rank);
std::vector<Copy> copies(const std::vector<Piece>& from, const std::vector<Piece>& to);

// Calls visit(from_offset, to_offset, length), in elements, for every run that is contiguous on both sides.
template <class Visit>
void for_each_run(const Copy& copy, Visit&& visit) {
  const Shape sizes = copy.box.sizes();
  if (copy.box.empty()) return;
  int64_t run = 1;
  int k = sizes.ndim() - 1;
  for (; k >= 0; --k) {
    if (sizes[k] != 1 && (copy.from.strides[k] != run || copy.to.strides[k] != run)) break;
    run *= sizes[k];
  }
  Shape at = Shape::filled(sizes.ndim(), 0);
  int64_t from = copy.from.offset, to = copy.to.offset;
  while (true) {
    visit(from, to, run);
    int d = k;
    for (; d >= 0; --d) {
      from += copy.from.strides[d];
      to += copy.to.strides[d];
      if (++at[d] < sizes[d]) break;
      from -= at[d] * copy.from.strides[d];
      to -= at[d] * copy.to.strides[d];
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace chassis
