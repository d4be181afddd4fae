// Intersections of boxes, and flat ranges as boxes.
#include "host/state/box.hpp"

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {

bool Box::empty() const {
  for (int k = 0; k < ndim(); ++k)
    if (end[k] <= begin[k]) return true;
  return false;
}

Shape Box::sizes() const {
  Shape out = Shape::filled(ndim(), 0);
  for (int k = 0; k < ndim(); ++k) out[k] = std::max<int64_t>(0, end[k] - begin[k]);
  return out;
}

bool Box::contains(const Shape& element) const {
  for (int k = 0; k < ndim(); ++k)
    if (element[k] < begin[k] || element[k] >= end[k]) return false;
  return true;
}

Box intersection(const Box& a, const Box& b) {
  CHASSIS_CHECK(a.ndim() == b.ndim(), "boxes with different numbers of dims");
  Box out = a;
  for (int k = 0; k < a.ndim(); ++k) {
    out.begin[k] = std::max(a.begin[k], b.begin[k]);
    out.end[k] = std::max(out.begin[k], std::min(a.end[k], b.end[k]));
  }
  return out;
}

std::string text(const Box& box) {
  std::string out = "[";
  for (int k = 0; k < box.ndim(); ++k) {
    if (k > 0) out += ", ";
    out += std::to_string(box.begin[k]) + ":" + std::to_string(box.end[k]);
  }
  return out + "]";
}

namespace {

// Adds elements [begin, end) of the sub-tensor whose leading `dim` indices are fixed in `prefix`.
void add_range(const Shape& shape, const Shape& strides, int dim, Box prefix, int64_t begin, int64_t end,
               std::vector<Box>& out) {
  if (begin >= end) return;
  const int64_t stride = strides[dim];
  int64_t first = begin / stride;
  const int64_t last = end / stride;
  if (first == (end - 1) / stride && (begin % stride != 0 || end % stride != 0)) {
    prefix.begin[dim] = first;
    prefix.end[dim] = first + 1;
    return add_range(shape, strides, dim + 1, prefix, begin - first * stride, end - first * stride, out);
  }
  if (begin % stride != 0) {
    prefix.begin[dim] = first;
    prefix.end[dim] = first + 1;
    add_range(shape, strides, dim + 1, prefix, begin - first * stride, stride, out);
    ++first;
  }
  if (first < last) {
    prefix.begin[dim] = first;
    prefix.end[dim] = last;
    for (int k = dim + 1; k < shape.ndim(); ++k) {
      prefix.begin[k] = 0;
      prefix.end[k] = shape[k];
    }
    out.push_back(prefix);
  }
  if (end % stride != 0) {
    prefix.begin[dim] = last;
    prefix.end[dim] = last + 1;
    add_range(shape, strides, dim + 1, prefix, 0, end - last * stride, out);
  }
}

}  // namespace

std::vector<Box> flat_range_boxes(const Shape& shape, int64_t begin, int64_t end) {
  CHASSIS_CHECK(begin >= 0 && end <= numel(shape), "flat range outside the tensor");
  std::vector<Box> out;
  if (begin >= end) return out;
  if (shape.ndim() == 0) return {Box{}};
  add_range(shape, row_major_strides(shape), 0, Box::whole(shape), begin, end, out);
  return out;
}

}  // namespace chassis
