// A box of elements: begin ≤ index < end in every dim. A tensor without dims has one element and one box.
#pragma once

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

}  // namespace chassis
