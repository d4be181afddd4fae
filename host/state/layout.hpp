// The meaning of a descriptor on a mesh: every rank's local shape, and the logical elements that it holds and owns.
// Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "host/state/box.hpp"
#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// The place of a box of elements in memory or in a file: the offset of its first element, and strides, in elements.
struct StridedView {
  int64_t offset = 0;
  Shape strides;
  bool operator==(const StridedView&) const = default;
};

// A box of logical elements and its place in the rank's local tensor.
struct Piece {
  Box box;            // logical, never empty; padding is in no piece
  StridedView local;  // in elements of the local tensor's storage
  bool owned = true;  // this rank, of all that hold these elements, writes them and counts them in norms

  // The place of a box within this piece.
  StridedView view(const Box& part) const;
};

// The place of a box in a row-major tensor, such as a file's.
StridedView row_major_view(const Shape& global_shape, const Box& box);

class Layout {
 public:
  // Checks the descriptor against the mesh; throws an Error that names tensor, placement and both numbers.
  Layout(Descriptor descriptor, MeshShape mesh);

  const Descriptor& descriptor() const { return descriptor_; }
  const MeshShape& mesh() const { return mesh_; }
  int world_size() const { return mesh_.world_size(); }

  // True if the local tensor is a one-dimensional range.
  bool is_flat() const { return is_flat_; }
  // The number of copies of the tensor along axes that no placement divides, and the copy to which a rank's part
  // belongs.
  int num_replicas() const { return num_replicas_; }
  int replica(int rank) const;
  // False if an only_on placement leaves the rank without the tensor. A rank may also hold it with no elements.
  bool holds(int rank) const;

  // The run-time shape with padding; 0 in every dim if the rank does not hold the tensor.
  Shape local_shape(int rank) const;
  int64_t local_bytes(int rank) const { return numel(local_shape(rank)) * size_bytes(descriptor_.dtype); }

  // In ascending order of the local storage.
  std::vector<Piece> pieces(int rank) const;
  std::vector<Box> boxes(int rank) const;
  std::vector<Box> owned_boxes(int rank) const;

  // Equal for two tensors on the same mesh if every rank holds and owns the same boxes of both. Names and dtypes do not
  // matter. Bytes, not text.
  std::string key() const;

 private:
  static constexpr int64_t kPadding = -1;

  // Consecutive indices of one dim, or padding.
  struct Segment {
    int64_t begin = 0;  // logical index, or kPadding
    int64_t length = 0;
  };
  using Segments = std::vector<Segment>;

  // A placement with the indices of its axes, and its cuts rounded to legal ones.
  struct Step {
    int placement = 0;  // index into Descriptor::placements
    std::vector<int> axes;
    int num_coordinates = 1;
    int64_t unit = 1;
  };

  // The part of the tensor that is left to one rank.
  struct Region {
    std::array<Segments, Shape::kMaxDims> dims;
    bool held = true;
    bool owned = true;
    int64_t flat_begin = 0, flat_end = 0;  // row-major elements of the dims above
    int64_t flat_size = 0;                 // with padding
  };

  void check_tensor() const;
  Step resolve(const Placement& placement, int index, bool after_flat) const;
  [[noreturn]] void refuse(const Placement& placement, const std::string& why) const;

  const Placement& placement(const Step& step) const {
    return descriptor_.placements[static_cast<size_t>(step.placement)];
  }
  int coordinate(const Step& step, const MeshShape::Coordinates& at) const;
  Region region(int rank) const;
  Shape region_shape(const Region& region) const;
  Segments chunk_dim(const Segments& segments, const Step& step, int coordinate) const;
  void narrow_flat(Region& region, const Step& step, int coordinate, int rank) const;

  Descriptor descriptor_;
  MeshShape mesh_;
  std::vector<Step> steps_;
  std::vector<int> replicated_axes_;
  int num_replicas_ = 1;
  uint64_t owner_seed_ = 0;  // modulo the number of replicas, the replica that owns
  int64_t block_elements_ = 1;
  bool is_flat_ = false;
};

}  // namespace chassis
