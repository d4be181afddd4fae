// Copies whose sides do not run along the same dim, such as transpositions, are cut into tiles, so that each side is
// read or written in runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "host/state/intersect.hpp"

namespace chassis {

using CopySide = StridedView Copy::*;

// True if the last dim with several indices has stride 1 on both sides, so that for_each_run() finds runs. Otherwise
// for_each_run() visits single elements: in a transposition, and also in part of one row of a tensor that is transposed
// on disk.
bool runs_agree(const Copy& copy);
// The same copy with its dims in the order of one side, slowest first. Only the sizes of its box are meaningful.
Copy in_order_of(CopySide side, const Copy& copy);
// The dim with the smallest stride on a side; 0 if no dim has several indices.
int fastest_dim(const Copy& copy, CopySide side);

// Elements of a tile along the fastest dim on disk, and along the fastest dim in memory.
constexpr int64_t kLongRun = 4096, kShortRun = 64;

// Calls visit(tile) for tiles that cover a copy whose runs do not agree: at most `from_run` elements along the fastest
// dim of `from` and `to_run` along that of `to`; their product if both are the same dim. The dims of a tile are in the
// order of `packed`.
template <class Visit>
void for_each_tile(const Copy& whole, CopySide packed, int64_t from_run, int64_t to_run, Visit&& visit) {
  if (whole.box.empty()) return;
  const Copy copy = in_order_of(packed, whole);
  const Shape sizes = copy.box.sizes();
  Shape most = Shape::filled(sizes.ndim(), 1), at = Shape::filled(sizes.ndim(), 0);
  most[fastest_dim(copy, &Copy::from)] = from_run;
  most[fastest_dim(copy, &Copy::to)] *= to_run;
  while (true) {
    Copy tile = copy;
    for (int d = 0; d < sizes.ndim(); ++d) {
      tile.box.begin[d] = copy.box.begin[d] + at[d];
      tile.box.end[d] = std::min(copy.box.end[d], tile.box.begin[d] + most[d]);
      tile.from.offset += at[d] * copy.from.strides[d];
      tile.to.offset += at[d] * copy.to.strides[d];
    }
    visit(tile);
    int d = sizes.ndim() - 1;
    for (; d >= 0; --d) {
      if ((at[d] += most[d]) < sizes[d]) break;
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace chassis
