// Checks of a descriptor, the division of a tensor by its placements, and the part that a rank has of it.
#include "host/state/layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "host/base/error.hpp"

namespace chassis {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// FNV-1a with splitmix64's finalizer: the same on every machine, since all ranks must agree on owners.
uint64_t name_hash(const std::string& name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

int owner_among(uint64_t seed, int replicas) { return static_cast<int>(seed % static_cast<uint64_t>(replicas)); }

}  // namespace

StridedView Piece::view(const Box& part) const {
  StridedView out = local;
  for (int k = 0; k < box.ndim(); ++k) {
    CHASSIS_CHECK(part.begin[k] >= box.begin[k] && part.end[k] <= box.end[k], "a view must lie within its piece");
    out.offset += (part.begin[k] - box.begin[k]) * local.strides[k];
  }
  return out;
}

StridedView row_major_view(const Shape& global_shape, const Box& box) {
  StridedView out{0, row_major_strides(global_shape)};
  for (int k = 0; k < box.ndim(); ++k) out.offset += box.begin[k] * out.strides[k];
  return out;
}

// ---- checks of the descriptor

Layout::Layout(Descriptor descriptor, MeshShape mesh) : descriptor_(std::move(descriptor)), mesh_(std::move(mesh)) {
  check_tensor();
  block_elements_ = descriptor_.block_elements();
  if (descriptor_.owner == OwnerRule::kSpread) owner_seed_ = name_hash(descriptor_.fqn);
  if (descriptor_.owner == OwnerRule::kGiven) owner_seed_ = static_cast<uint64_t>(descriptor_.owner_replica);

  std::array<bool, MeshShape::kMaxAxes> used{};
  int index = 0;
  for (const Placement& placement : descriptor_.placements) {
    Step step = resolve(placement, index++, is_flat_);
    for (int axis : step.axes) {
      if (std::exchange(used[static_cast<size_t>(axis)], true))
        refuse(placement, "mesh axis '" + mesh_.axes()[static_cast<size_t>(axis)].name + "' is already placed");
    }
    is_flat_ |= placement.kind == Placement::Kind::kFlatRange;
    steps_.push_back(std::move(step));
  }
  for (int axis = 0; axis < mesh_.num_axes(); ++axis)
    if (!used[static_cast<size_t>(axis)]) replicated_axes_.push_back(axis);
  std::sort(replicated_axes_.begin(), replicated_axes_.end());
  for (int axis : replicated_axes_) num_replicas_ *= mesh_.size(axis);
}

void Layout::check_tensor() const {
  const Descriptor& d = descriptor_;
  if (d.fqn.empty()) throw plugin_error("a shard descriptor has no name");
  const auto fail = [&](const std::string& why) { throw plugin_error("tensor '" + d.fqn + "': " + why); };
  if (size_bytes(d.dtype) == 0) fail("unknown dtype " + std::to_string(static_cast<uint32_t>(d.dtype)));
  if (d.global_shape.ndim() != d.padded_shape.ndim())
    fail("padded shape " + text(d.padded_shape) + " and shape " + text(d.global_shape) +
         " have different numbers of dims");
  numel(d.global_shape);
  numel(d.padded_shape);
  for (int k = 0; k < d.global_shape.ndim(); ++k)
    if (d.padded_shape[k] < d.global_shape[k])
      fail("padded shape " + text(d.padded_shape) + " is smaller than " + text(d.global_shape));
  if (d.granularity.kind == Granularity::Kind::kBlock && d.granularity.block < 1)
    fail("blocks have " + std::to_string(d.granularity.block) + " elements; they must have at least 1");
  for (const Component& c : d.components)
    if (c.unit_elements < 0 || c.unit_values < 1)
      fail("component '" + c.suffix + "' has " + std::to_string(c.unit_values) + " values for every " +
           std::to_string(c.unit_elements) + " elements");
}

void Layout::refuse(const Placement& placement, const std::string& why) const {
  throw plugin_error("tensor '" + descriptor_.fqn + "' " + chassis::text(descriptor_.global_shape) + ": " +
                     placement.text() + ": " + why);
}

Layout::Step Layout::resolve(const Placement& placement, int index, bool after_flat) const {
  Step step;
  step.placement = index;
  if (placement.axes.empty()) refuse(placement, "names no mesh axis");
  for (const std::string& name : placement.axes) {
    const int axis = mesh_.find(name);
    if (axis < 0) refuse(placement, "the mesh has no axis '" + name + "' (it has " + mesh_.text() + ")");
    step.axes.push_back(axis);
    step.num_coordinates *= mesh_.size(axis);
  }
  const int n = step.num_coordinates;

  switch (placement.kind) {
    case Placement::Kind::kDimChunk: {
      if (after_flat) refuse(placement, "dims cannot be cut after a flat range; flat ranges come last in the stack");
      if (placement.dim < 0 || placement.dim >= descriptor_.global_shape.ndim()) refuse(placement, "no such dim");
      if (placement.unit < 1)
        refuse(placement, "the unit is " + std::to_string(placement.unit) + "; it must be at least 1");
      const int64_t stride = row_major_strides(descriptor_.global_shape)[placement.dim];
      const int64_t block = descriptor_.block_elements();
      step.unit = std::lcm(placement.unit, block / std::gcd(block, stride));
      break;
    }
    case Placement::Kind::kFlatRange:
      if (!placement.ranges.empty() && placement.ranges.size() != static_cast<size_t>(n))
        refuse(placement,
               std::to_string(placement.ranges.size()) + " ranges for " + std::to_string(n) + " coordinates");
      break;
    case Placement::Kind::kOnlyOn:
      for (const int coordinate : placement.copies)
        if (coordinate < 0 || coordinate >= n || coordinate == placement.coordinate)
          refuse(placement, "a copy lies on coordinate " + std::to_string(coordinate) + " of " + std::to_string(n));
      if (placement.coordinate < 0 || placement.coordinate >= n)
        refuse(placement, "there are " + std::to_string(n) + " coordinates");
      break;
  }
  return step;
}

// ---- division by placements

int Layout::coordinate(const Step& step, const MeshShape::Coordinates& at) const {
  int out = 0;
  for (int axis : step.axes) out = out * mesh_.size(axis) + at[static_cast<size_t>(axis)];
  return out;
}

Layout::Region Layout::region(int rank) const {
  const Descriptor& d = descriptor_;
  const MeshShape::Coordinates at = mesh_.coordinates(rank);
  Region out;
  out.owned = replica(rank) == owner_among(owner_seed_, num_replicas_);

  for (int k = 0; k < d.global_shape.ndim(); ++k) {
    Segments& segments = out.dims[static_cast<size_t>(k)];
    segments.push_back({0, d.global_shape[k]});
    if (const int64_t extra = d.padded_shape[k] - d.global_shape[k]; extra > 0) segments.push_back({kPadding, extra});
  }

  bool flat = false;
  for (const Step& step : steps_) {
    const Placement& placement = this->placement(step);
    const int c = coordinate(step, at);
    if (placement.kind == Placement::Kind::kDimChunk) {
      Segments& segments = out.dims[static_cast<size_t>(placement.dim)];
      segments = chunk_dim(segments, step, c);
    } else if (placement.kind == Placement::Kind::kFlatRange) {
      if (!std::exchange(flat, true)) out.flat_size = out.flat_end = numel(region_shape(out));
      narrow_flat(out, step, c, rank);
    } else if (placement.kind == Placement::Kind::kOnlyOn) {
      out.held &= placement.is_on(c);
      out.owned &= c == placement.coordinate;
    }
  }
  if (!flat) out.flat_size = out.flat_end = numel(region_shape(out));
  return out;
}

Shape Layout::region_shape(const Region& region) const {
  Shape out = descriptor_.global_shape;
  for (int k = 0; k < out.ndim(); ++k) {
    out[k] = 0;
    for (const Segment& segment : region.dims[static_cast<size_t>(k)]) out[k] += segment.length;
  }
  return out;
}

Layout::Segments Layout::chunk_dim(const Segments& segments, const Step& step, int coordinate) const {
  Segments out;
  int64_t length = 0;
  for (const Segment& s : segments) length += s.length;
  const int64_t chunk = ceil_div(ceil_div(length, step.unit), step.num_coordinates) * step.unit;
  const int64_t begin = std::min(length, chunk * coordinate);
  const int64_t end = std::min(length, begin + chunk);

  int64_t at = 0;
  for (const Segment& s : segments) {
    const int64_t from = std::max(begin, at), to = std::min(end, at + s.length);
    if (from < to) out.push_back({s.begin == kPadding ? kPadding : s.begin + (from - at), to - from});
    at += s.length;
  }
  if (placement(step).pad_even && end - begin < chunk) out.push_back({kPadding, chunk - (end - begin)});
  return out;
}

void Layout::narrow_flat(Region& region, const Step& step, int coordinate, int rank) const {
  const Placement& placement = this->placement(step);
  int64_t begin = 0, size = 0;  // relative to what the rank had
  if (!placement.ranges.empty()) {
    const FlatRange& range = placement.ranges[static_cast<size_t>(coordinate)];
    begin = range.offset;
    size = range.length;
    if (begin < 0 || size < 0 || begin > region.flat_size || size > region.flat_size - begin)
      refuse(placement, "rank " + std::to_string(rank) + " is given " + std::to_string(size) + " elements at " +
                            std::to_string(begin) + ", its local tensor has " + std::to_string(region.flat_size));
  } else {
    size = ceil_div(ceil_div(region.flat_size, block_elements_), step.num_coordinates) * block_elements_;
    begin = size * coordinate;
  }
  region.flat_begin = std::min(region.flat_end, region.flat_begin + begin);
  region.flat_end = std::min(region.flat_end, region.flat_begin + size);
  region.flat_size = size;
}

// ---- the part of a rank

bool Layout::holds(int rank) const {
  const MeshShape::Coordinates at = mesh_.coordinates(rank);
  for (const Step& step : steps_)
    if (placement(step).kind == Placement::Kind::kOnlyOn && !placement(step).is_on(coordinate(step, at))) return false;
  return true;
}

int Layout::replica(int rank) const {
  const MeshShape::Coordinates at = mesh_.coordinates(rank);
  int out = 0, weight = 1;
  for (int axis : replicated_axes_) {
    out += at[static_cast<size_t>(axis)] * weight;
    weight *= mesh_.size(axis);
  }
  return out;
}

Shape Layout::local_shape(int rank) const {
  const Region r = region(rank);
  if (!r.held) return Shape::filled(is_flat_ ? 1 : std::max(1, descriptor_.global_shape.ndim()), 0);
  return is_flat_ ? Shape{r.flat_size} : region_shape(r);
}

std::vector<Piece> Layout::pieces(int rank) const {
  std::vector<Piece> out;
  if (!holds(rank)) return out;
  const Region r = region(rank);

  const Shape shape = region_shape(r);
  const Shape strides = row_major_strides(shape);
  const int ndim = shape.ndim();

  // The segments of every dim without padding, neighbours joined, with their place in the local tensor.
  struct Run {
    int64_t local, begin, length;
  };
  std::array<std::vector<Run>, Shape::kMaxDims> runs;
  for (int k = 0; k < ndim; ++k) {
    auto& list = runs[static_cast<size_t>(k)];
    int64_t at = 0;
    for (const Segment& s : r.dims[static_cast<size_t>(k)]) {
      if (s.begin != kPadding && s.length > 0) {
        const bool joins = !list.empty() && list.back().local + list.back().length == at &&
                           list.back().begin + list.back().length == s.begin;
        if (joins)
          list.back().length += s.length;
        else
          list.push_back({at, s.begin, s.length});
      }
      at += s.length;
    }
  }

  // One piece for every combination of runs that meets the local box.
  const auto add_local_box = [&](const Box& local) {
    std::array<size_t, Shape::kMaxDims> at{};
    for (int k = 0; k < ndim; ++k)
      if (runs[static_cast<size_t>(k)].empty()) return;
    while (true) {
      Piece piece{{Shape::filled(ndim, 0), Shape::filled(ndim, 0)}, {-r.flat_begin, strides}, r.owned};
      for (int k = 0; k < ndim; ++k) {
        const Run& run = runs[static_cast<size_t>(k)][at[static_cast<size_t>(k)]];
        const int64_t from = std::max(local.begin[k], run.local);
        const int64_t to = std::min(local.end[k], run.local + run.length);
        piece.box.begin[k] = run.begin + (from - run.local);
        piece.box.end[k] = run.begin + (to - run.local);
        piece.local.offset += from * strides[k];
      }
      if (!piece.box.empty()) out.push_back(piece);
      int k = ndim - 1;
      while (k >= 0 && ++at[static_cast<size_t>(k)] == runs[static_cast<size_t>(k)].size())
        at[static_cast<size_t>(k--)] = 0;
      if (k < 0) return;
    }
  };

  if (is_flat_) {
    for (const Box& local : flat_range_boxes(shape, r.flat_begin, r.flat_end)) add_local_box(local);
  } else {
    add_local_box(Box::whole(shape));
  }
  return out;
}

std::vector<Box> Layout::boxes(int rank) const {
  std::vector<Box> out;
  for (Piece& piece : pieces(rank)) out.push_back(piece.box);
  return out;
}

std::vector<Box> Layout::owned_boxes(int rank) const {
  std::vector<Box> out;
  if (replica(rank) != owner_among(owner_seed_, num_replicas_)) return out;
  for (Piece& piece : pieces(rank))
    if (piece.owned) out.push_back(piece.box);
  return out;
}

std::string Layout::key() const {
  const Descriptor& d = descriptor_;
  std::string key;
  const auto add = [&](auto number) {
    const auto wide = static_cast<int64_t>(number);
    key.append(reinterpret_cast<const char*>(&wide), sizeof wide);
  };
  const auto add_all = [&](const auto& numbers) {
    add(std::distance(numbers.begin(), numbers.end()));
    for (const auto number : numbers) add(number);
  };
  add_all(d.global_shape);
  add_all(d.padded_shape);
  add(block_elements_);
  for (const Step& step : steps_) {
    const Placement& p = placement(step);
    add(p.kind);
    add_all(step.axes);
    for (const int64_t number : {int64_t{p.dim}, int64_t{p.pad_even}, step.unit, int64_t{p.coordinate}}) add(number);
    add(p.ranges.size());
    for (const FlatRange& range : p.ranges) {
      add(range.offset);
      add(range.length);
    }
    add_all(p.copies);
  }
  add(owner_among(owner_seed_, num_replicas_));
  return key;
}

}  // namespace chassis
