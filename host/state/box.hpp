// A box of elements: begin ≤ index < end in every dim. A tensor without dims has one element and one box.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "host/state/shape.hpp"

namespace chassis {

struct Box {
  Shape begin;
  Shape end;

  static Box whole(const Shape& shape) { return {Shape::filled(shape.ndim(), 0), shape}; }

  int ndim() const { return begin.ndim(); }
  bool empty() const;
  Shape sizes() const;
  bool contains(const Shape& element) const;
  bool operator==(const Box&) const = default;
};

inline int64_t numel(const Box& box) { return numel(box.sizes()); }

// The elements that are in both boxes. If there are none, begin == end in at least one dim.
Box intersection(const Box& a, const Box& b);

// "[0:16064, 0:8192]"
std::string text(const Box& box);

// Elements [begin, end) of a row-major tensor as at most 2 * ndim - 1 boxes, in ascending order.
std::vector<Box> flat_range_boxes(const Shape& shape, int64_t begin, int64_t end);

// Calls visit(part) for slabs of at most max_elements, cut along the first dims.
template <class Visit>
void for_each_slab(const Box& box, int64_t max_elements, const Visit& visit) {
  if (numel(box) <= max_elements) return visit(box);
  int dim = 0;
  while (box.end[dim] - box.begin[dim] == 1) ++dim;
  const int64_t inner = numel(box) / (box.end[dim] - box.begin[dim]);
  const int64_t thickness = std::max<int64_t>(1, max_elements / inner);
  for (int64_t at = box.begin[dim]; at < box.end[dim]; at += thickness) {
    Box slab = box;
    slab.begin[dim] = at;
    slab.end[dim] = std::min(at + thickness, box.end[dim]);
    for_each_slab(slab, max_elements, visit);
  }
}

}  // namespace chassis
