// Finds each rank's part of slots and values.
#include "host/compile/layout_pass.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/compile/row_pieces.hpp"

namespace chassis {
namespace {

using Kind = Sharding::Kind;

int64_t divided(int64_t size, int64_t ways) { return (size + ways - 1) / ways; }

// The size of a rank's part of a dim that the axis divides.
int64_t divided(int64_t size, const LayoutAxis& axis, DimId dim) {
  if (axis.is_zigzag && dim == CHASSIS_DIM_TIME) return kRowPieces * divided(size, kRowPieces * axis.size);
  return divided(size, axis.size);
}

}  // namespace

int64_t ProgramLayout::local_size(const std::vector<Sharding>& sharding, DimId dim, int64_t size) const {
  for (size_t a = 0; a < std::min(axes.size(), sharding.size()); ++a) {
    const bool is_divided = sharding[a].kind == Kind::kShard && sharding[a].dim == dim;
    if (is_divided || (sharding[a].is_chunk && dim == CHASSIS_DIM_TIME)) size = divided(size, axes[a], dim);
  }
  return size;
}

std::vector<int64_t> ProgramLayout::local_shape(const Program& program, const GraphValue& value,
                                                const DimSizes& sizes) const {
  std::vector<int64_t> shape;
  for (DimId dim : value.dims) shape.push_back(local_size(value.sharding, dim, sizes.size_of(program, dim)));
  return shape;
}

std::vector<int64_t> ProgramLayout::local_shape(const Program& program, const ParameterSlot& slot) const {
  std::vector<int64_t> shape;
  for (const auto& axis : slot.axes) {
    int64_t size = 1;
    for (DimId dim : axis) size *= local_size(slot.sharding, dim, program.dims[dim].size);
    shape.push_back(size);
  }
  return shape;
}

const LayoutAxis& ProgramLayout::axis(std::string_view name) const {
  const auto found = std::ranges::find(axes, name, &LayoutAxis::name);
  CHASSIS_CHECK(found != axes.end(), std::string(name));
  return *found;
}

ProgramLayout ProgramLayout::of_piece(std::string_view name) const {
  ProgramLayout out = *this;
  const auto found = std::ranges::find(out.axes, name, &LayoutAxis::name);
  CHASSIS_CHECK(found != out.axes.end() && found->is_zigzag, std::string(name));
  found->size *= kRowPieces;
  found->is_zigzag = false;
  return out;
}

std::vector<int64_t> ProgramLayout::begin(const Program& program, const ParameterSlot& slot) const {
  std::vector<int64_t> out;
  for (const auto& axis : slot.axes) {
    int64_t first = 0, size = 1;
    for (DimId dim : axis) {
      int64_t first_index = 0, left = program.dims[dim].size;
      for (size_t a = 0; a < std::min(axes.size(), slot.sharding.size()); ++a) {
        if (slot.sharding[a] != Sharding{Kind::kShard, dim}) continue;
        left = divided(left, axes[a], dim);
        first_index += axes[a].coordinate * left;
      }
      first = first * program.dims[dim].size + first_index;
      size *= program.dims[dim].size;
    }
    out.push_back(std::min(first, size));
  }
  return out;
}

}  // namespace chassis
