// Placements and components by their named constructors, and the texts of descriptors.
#include "host/state/descriptor.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace chassis {

namespace {

Placement placement(Placement::Kind kind, std::vector<std::string> axes) {
  Placement out;
  out.kind = kind;
  out.axes = std::move(axes);
  return out;
}

}  // namespace

Placement Placement::dim_chunk(std::vector<std::string> axes, int dim) {
  Placement out = placement(Kind::kDimChunk, std::move(axes));
  out.dim = dim;
  return out;
}

Placement Placement::flat_range(std::vector<std::string> axes) { return placement(Kind::kFlatRange, std::move(axes)); }

Placement Placement::flat_ranges(std::vector<std::string> axes, std::vector<FlatRange> ranges) {
  Placement out = flat_range(std::move(axes));
  out.ranges = std::move(ranges);
  return out;
}


Placement Placement::only_on(std::vector<std::string> axes, int coordinate) {
  Placement out = placement(Kind::kOnlyOn, std::move(axes));
  out.coordinate = coordinate;
  return out;
}

bool Placement::is_on(int other) const {
  return other == coordinate || std::find(copies.begin(), copies.end(), other) != copies.end();
}

std::string Placement::text() const {
  std::string out;
  switch (kind) {
    case Kind::kDimChunk:
      out = "dim_chunk(" + std::to_string(dim);
      if (unit > 1) out += ", unit " + std::to_string(unit);
      if (pad_even) out += ", padded";
      out += ")";
      break;
    case Kind::kFlatRange:
      out = "flat_range";
      if (!ranges.empty()) out += "(given)";
      break;
    case Kind::kOnlyOn:
      out = "only_on(" + std::to_string(coordinate);
      for (const int copy : copies) out += ", copy on " + std::to_string(copy);
      out += ")";
      break;
  }
  out += " over ";
  for (size_t k = 0; k < axes.size(); ++k) out += (k > 0 ? "+" : "") + axes[k];
  return out;
}

Component Component::per_unit(std::string suffix, Dtype dtype, int64_t unit_elements, int64_t unit_values) {
  return {std::move(suffix), dtype, unit_elements, unit_values, {}};
}

Component Component::whole(std::string suffix, Dtype dtype, Shape whole_shape) {
  return {std::move(suffix), dtype, 0, 1, whole_shape};
}

Descriptor Descriptor::plain(std::string fqn, Dtype dtype, Shape global_shape) {
  Descriptor out;
  out.fqn = std::move(fqn);
  out.global_shape = out.padded_shape = global_shape;
  out.dtype = dtype;
  return out;
}

int64_t Descriptor::block_elements() const {
  int64_t block = 1;
  if (granularity.kind == Granularity::Kind::kBlock) block = granularity.block;
  if (granularity.kind == Granularity::Kind::kMatrix)
    for (int k = std::max(0, global_shape.ndim() - 2); k < global_shape.ndim(); ++k)
      block *= std::max<int64_t>(1, global_shape[k]);
  for (const Component& component : components)
    if (component.unit_elements > 0) block = std::lcm(block, component.unit_elements);
  return block;
}

std::string Descriptor::text() const {
  std::string out = fqn + " " + std::string(dtype_name(dtype)) + " " + chassis::text(global_shape);
  if (is_padded()) out += " padded to " + chassis::text(padded_shape);
  for (const Placement& placement : placements) out += ", " + placement.text();
  if (!components.empty()) out += ", " + std::to_string(components.size()) + " components";
  return out;
}

int dim_cut_within_blocks(const Descriptor& descriptor, const Shape& local_shape, int64_t block) {
  const Shape& shape = descriptor.global_shape;
  const Shape strides = row_major_strides(shape);
  for (const Placement& placement : descriptor.placements) {
    if (placement.kind != Placement::Kind::kDimChunk) continue;
    const int dim = placement.dim;
    // In a dim after the first, every row must begin at a block.
    const bool rows_begin_at_blocks = dim == 0 || shape[dim] * strides[dim] % block == 0;
    if (local_shape[dim] * strides[dim] % block != 0 || !rows_begin_at_blocks) return dim;
  }
  return -1;
}

}  // namespace chassis
