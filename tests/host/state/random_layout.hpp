// Random descriptors on random meshes, and an oracle: a slow and simple implementation of what they mean, which slices
// arrays of element numbers as a strategy slices the tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "host/state/layout.hpp"

namespace chassis::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // Uniform in [low, high].
  int64_t roll(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return roll(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

inline MeshShape random_mesh(Dice& dice, int max_world) {
  static const char* const kNames[] = {"pp", "dp_replicate", "dp_shard", "cp", "tp"};
  std::vector<MeshAxis> axes;
  int left = max_world;
  const int64_t n = dice.roll(0, 4);
  for (int64_t k = 0; k < n; ++k) {
    const int size = static_cast<int>(dice.roll(1, std::min<int64_t>(left, dice.chance(20) ? 64 : 8)));
    axes.push_back({kNames[k], size});
    left /= size;
  }
  return MeshShape(axes);
}

inline Shape random_shape(Dice& dice, int64_t max_numel) {
  Shape shape = Shape::filled(static_cast<int>(dice.roll(0, 4)), 1);
  for (int k = 0; k < shape.ndim(); ++k) {
    shape[k] = dice.chance(3) ? 0 : dice.roll(1, dice.chance(30) ? 40 : 7);
    if (numel(shape) > max_numel) shape[k] = 1;
  }
  return shape;
}

inline int num_coordinates(const MeshShape& mesh, const Placement& placement) {
  int n = 1;
  for (const std::string& axis : placement.axes) n *= mesh.size(mesh.find(axis));
  return n;
}

// Consecutive ranges of random lengths that partition `numel` elements.
inline std::vector<FlatRange> random_partition(Dice& dice, int64_t numel, int n) {
  std::vector<int64_t> at = {0, numel};
  for (int k = 1; k < n; ++k) at.push_back(dice.roll(0, numel));
  std::sort(at.begin(), at.end());
  std::vector<FlatRange> out;
  for (int k = 0; k < n; ++k)
    out.push_back({at[static_cast<size_t>(k)], at[static_cast<size_t>(k) + 1] - at[static_cast<size_t>(k)]});
  return out;
}

inline Descriptor random_descriptor(Dice& dice, const MeshShape& mesh, const Shape& global_shape) {
  Descriptor d = Descriptor::plain("layer." + std::to_string(dice.roll(0, 99)), Dtype::f32, global_shape);
  const int ndim = global_shape.ndim();
  if (dice.chance(50)) d.owner = OwnerRule::kSpread;
  if (dice.chance(25)) d.granularity = dice.chance(20) ? Granularity::matrix() : Granularity::block_of(dice.roll(1, 9));
  for (int k = 0; k < ndim; ++k)
    if (dice.chance(15)) d.padded_shape[k] += dice.roll(1, 5);

  std::vector<int> order;
  for (int k = 0; k < mesh.num_axes(); ++k) order.insert(order.begin() + dice.roll(0, k), k);
  bool flat = false, whole = true;
  for (size_t k = 0; k < order.size(); ++k) {
    std::vector<std::string> axes = {mesh.axes()[static_cast<size_t>(order[k])].name};
    if (k + 1 < order.size() && dice.chance(20)) axes.push_back(mesh.axes()[static_cast<size_t>(order[++k])].name);
    const int64_t kind = dice.roll(0, 99);
    if (kind < 20) continue;  // an axis that no placement names
    if (kind < 28) {
      Placement p = Placement::only_on(axes, 0);
      p.coordinate = static_cast<int>(dice.roll(0, num_coordinates(mesh, p) - 1));
      for (int c = 0; c < num_coordinates(mesh, p); ++c)
        if (c != p.coordinate && dice.chance(20)) p.copies.push_back(c);
      d.placements.push_back(p);
    } else if (kind < 75 && !flat && ndim > 0) {
      Placement p = Placement::dim_chunk(axes, static_cast<int>(dice.roll(0, ndim - 1)));
      if (dice.chance(20)) p.unit = dice.roll(1, 4);
      if (dice.chance(20)) p.pad_even = true;
      d.placements.push_back(p);
      whole = false;
    } else {
      Placement p = Placement::flat_range(axes);
      const int64_t size = numel(d.padded_shape);
      if (whole && dice.chance(25)) p.ranges = random_partition(dice, size, num_coordinates(mesh, p));
      d.placements.push_back(p);
      flat = true;
      whole = false;
    }
  }
  return d;
}

// ---- the oracle

struct LocalArray {
  Shape shape;
  std::vector<int64_t> elements;  // row-major logical element number, or -1 for padding
  bool held = true;
};

namespace oracle {

// The indices `keep` of the array along dim; -1 adds padding.
inline LocalArray take(const LocalArray& in, int dim, const std::vector<int64_t>& keep) {
  int64_t outer = 1, inner = 1;
  for (int k = 0; k < in.shape.ndim(); ++k) (k < dim ? outer : k > dim ? inner : outer) *= k == dim ? 1 : in.shape[k];
  LocalArray out{in.shape, {}, in.held};
  out.shape[dim] = static_cast<int64_t>(keep.size());
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t index : keep)
      for (int64_t i = 0; i < inner; ++i)
        out.elements.push_back(index < 0 ? -1
                                         : in.elements[static_cast<size_t>((o * in.shape[dim] + index) * inner + i)]);
  return out;
}

inline int64_t legal_unit(const Descriptor& d, int dim, int64_t unit) {
  int64_t stride = 1;
  for (int k = dim + 1; k < d.global_shape.ndim(); ++k) stride *= d.global_shape[k];
  int64_t out = unit;
  while (out * stride % d.block_elements() != 0) out += unit;
  return out;
}

// torch.chunk(n_chunks)[index] of the indices, in multiples of `unit`; with `pad`, filled with -1 to the full chunk
// size.
inline std::vector<int64_t> chunk(const std::vector<int64_t>& indices, int64_t unit, int n_chunks, int index,
                                  bool pad) {
  const auto size = static_cast<int64_t>(indices.size());
  int64_t per_chunk = 0;
  while (per_chunk * n_chunks < size) per_chunk += unit;
  std::vector<int64_t> out;
  for (int64_t k = per_chunk * index; k < per_chunk * (index + 1); ++k) {
    if (k < size)
      out.push_back(indices[static_cast<size_t>(k)]);
    else if (pad)
      out.push_back(-1);
  }
  return out;
}

}  // namespace oracle

inline LocalArray local_array(const Descriptor& d, const MeshShape& mesh, int rank) {
  using Kind = Placement::Kind;
  const MeshShape::Coordinates at = mesh.coordinates(rank);
  const int ndim = d.global_shape.ndim();
  LocalArray a{d.padded_shape, {}, true};
  for (int64_t flat = 0; flat < numel(d.padded_shape); ++flat) {
    int64_t rest = flat, id = 0, weight = 1;
    for (int k = ndim - 1; k >= 0; --k) {
      const int64_t index = rest % d.padded_shape[k];
      rest /= d.padded_shape[k];
      if (index >= d.global_shape[k]) id = -1;
      if (id >= 0) id += index * weight;
      weight *= d.global_shape[k];
    }
    a.elements.push_back(id);
  }
  bool flat = false;
  for (const Placement& p : d.placements) {
    int c = 0;
    for (const std::string& axis : p.axes)
      c = c * mesh.size(mesh.find(axis)) + at[static_cast<size_t>(mesh.find(axis))];
    const int n = num_coordinates(mesh, p);
    if (p.kind == Kind::kOnlyOn && !p.is_on(c)) a.held = false;
    if (p.kind == Kind::kDimChunk) {
      const int64_t unit = oracle::legal_unit(d, p.dim, p.unit);
      std::vector<int64_t> indices;
      for (int64_t k = 0; k < a.shape[p.dim]; ++k) indices.push_back(k);
      a = oracle::take(a, p.dim, oracle::chunk(indices, unit, n, c, p.pad_even));
    }
    if (p.kind == Kind::kFlatRange) {
      flat = true;
      const auto size = static_cast<int64_t>(a.elements.size());
      int64_t begin = 0, length = 0;
      if (!p.ranges.empty()) {
        begin = p.ranges[static_cast<size_t>(c)].offset;
        length = p.ranges[static_cast<size_t>(c)].length;
      } else {
        while (length * n < size) length += d.block_elements();
        begin = length * c;
      }
      std::vector<int64_t> kept;
      for (int64_t k = begin; k < begin + length; ++k)
        kept.push_back(k < size ? a.elements[static_cast<size_t>(k)] : -1);
      a.elements = kept;
      a.shape = Shape{length};
    }
  }
  if (!a.held) {
    a.elements.clear();
    a.shape = Shape::filled(flat ? 1 : std::max(1, ndim), 0);
  }
  return a;
}

// The local storage that the pieces describe, in the oracle's form. Elements in two pieces become -2.
inline std::vector<int64_t> fill_from_pieces(const Layout& layout, int rank, const std::vector<Piece>& pieces) {
  std::vector<int64_t> out(static_cast<size_t>(numel(layout.local_shape(rank))), -1);
  const Shape& shape = layout.descriptor().global_shape;
  const Shape global_strides = row_major_strides(shape);
  for (const Piece& piece : pieces) {
    Shape at = piece.box.begin;
    for (int64_t left = numel(piece.box); left > 0; --left) {
      int64_t id = 0, offset = piece.local.offset;
      for (int k = 0; k < shape.ndim(); ++k) {
        id += at[k] * global_strides[k];
        offset += (at[k] - piece.box.begin[k]) * piece.local.strides[k];
      }
      int64_t& slot = out.at(static_cast<size_t>(offset));
      slot = slot == -1 ? id : -2;
      for (int k = shape.ndim() - 1; k >= 0; --k) {
        if (++at[k] < piece.box.end[k]) break;
        at[k] = piece.box.begin[k];
      }
    }
  }
  return out;
}

}  // namespace chassis::testing
