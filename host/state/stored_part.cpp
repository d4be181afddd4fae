// Converts boxes between the order of dims on disk and that of the tensor.
#include "host/state/stored_part.hpp"

#include <numeric>
#include <utility>

#include "host/base/error.hpp"
#include "host/state/byte_range.hpp"

namespace chassis {

StoredPart StoredPart::whole(std::string disk_name, const Shape& shape) {
  StoredPart part{std::move(disk_name), shape, Box::whole(shape), Shape::filled(shape.ndim(), 0), {}};
  part.dims.resize(static_cast<size_t>(shape.ndim()));
  std::iota(part.dims.begin(), part.dims.end(), 0);
  return part;
}

StoredPart StoredPart::reshaped(std::string disk_name, const Shape& disk_shape, const Box& box) {
  const Shape sizes = box.sizes();
  CHASSIS_CHECK(numel(disk_shape) == numel(sizes), "'" + disk_name + "' has other elements on disk");
  StoredPart part = whole(std::move(disk_name), sizes);
  part.box = box;
  part.is_reshaped = disk_shape != sizes;
  part.disk_shape = disk_shape;
  return part;
}

Box StoredPart::on_disk(const Box& in_tensor) const {
  Box out{disk_begin, disk_begin};
  for (int k = 0; k < disk_begin.ndim(); ++k) {
    const int dim = dims[static_cast<size_t>(k)];
    out.begin[k] += in_tensor.begin[dim] - box.begin[dim];
    out.end[k] += in_tensor.end[dim] - box.begin[dim];
  }
  return out;
}

Box StoredPart::in_tensor(const Box& on_disk) const {
  Box out = box;
  for (int k = 0; k < disk_begin.ndim(); ++k) {
    const int dim = dims[static_cast<size_t>(k)];
    out.begin[dim] = box.begin[dim] + on_disk.begin[k] - disk_begin[k];
    out.end[dim] = box.begin[dim] + on_disk.end[k] - disk_begin[k];
  }
  return out;
}

Piece StoredPart::piece(const Box& disk_box) const {
  const Box shared = intersection(disk_box, on_disk(box));
  const Shape strides = row_major_strides(disk_box.sizes());
  Piece out;
  out.box = in_tensor(shared);
  out.local.strides = Shape::filled(box.ndim(), 0);
  for (int k = 0; k < disk_box.ndim(); ++k) {
    out.local.offset += (shared.begin[k] - disk_box.begin[k]) * strides[k];
    out.local.strides[dims[static_cast<size_t>(k)]] = strides[k];
  }
  return out;
}

std::vector<Piece> StoredPart::pieces(const Box& disk_box) const {
  if (disk_box.empty()) return {};
  if (!is_reshaped) {
    const Piece one = piece(disk_box);
    return one.box.empty() ? std::vector<Piece>() : std::vector<Piece>{one};
  }
  CHASSIS_CHECK(ByteRanges(disk_box, disk_shape, 1).contiguous(),
                "'" + disk_name + "' has dims on disk that are cut, and others in the run");
  const int64_t begin = row_major_view(disk_shape, disk_box).offset;
  std::vector<Piece> out;
  for (Box part : flat_range_boxes(box.sizes(), begin, begin + numel(disk_box))) {
    StridedView local = row_major_view(box.sizes(), part);
    local.offset -= begin;
    for (int k = 0; k < part.ndim(); ++k) part.begin[k] += box.begin[k], part.end[k] += box.begin[k];
    out.push_back({part, local, true});
  }
  return out;
}

}  // namespace chassis
