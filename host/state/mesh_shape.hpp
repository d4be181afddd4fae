// The mesh as numbers: named axes with sizes, and the coordinates of ranks on them. No processes, no communication.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class MeshShape {
 public:
  static constexpr int kMaxAxes = 8;
  using Coordinates = std::array<int, kMaxAxes>;

  // A mesh without axes has one rank. The last axis varies fastest, so that neighbours on it are neighbouring ranks.
  MeshShape() = default;
  explicit MeshShape(std::vector<MeshAxis> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int num_axes() const { return static_cast<int>(axes_.size()); }
  int world_size() const { return world_size_; }
  int size(int axis) const { return axes_[static_cast<size_t>(axis)].size; }
  // The index of the axis with that name; -1 if there is none.
  int find(std::string_view name) const;

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;

  // "dp_shard=4, tp=2"
  std::string text() const;
  bool operator==(const MeshShape&) const = default;

 private:
  std::vector<MeshAxis> axes_;
  int world_size_ = 1;
};

}  // namespace chassis
