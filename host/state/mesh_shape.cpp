// Ranks and their coordinates.
#include "host/state/mesh_shape.hpp"

#include "host/base/error.hpp"

namespace chassis {

MeshShape::MeshShape(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  if (num_axes() > kMaxAxes)
    throw config_error("the mesh has " + std::to_string(num_axes()) + " axes; at most " + std::to_string(kMaxAxes) +
                       " are supported");
  for (int k = 0; k < num_axes(); ++k) {
    const MeshAxis& axis = axes_[static_cast<size_t>(k)];
    if (axis.size < 1)
      throw config_error("mesh axis '" + axis.name + "' has size " + std::to_string(axis.size) +
                         "; it must be at least 1");
    if (find(axis.name) != k) throw config_error("mesh axis '" + axis.name + "' is named twice");
    if (__builtin_mul_overflow(world_size_, axis.size, &world_size_))
      throw config_error("the mesh " + text() + " has more ranks than fit in an int");
  }
}

int MeshShape::find(std::string_view name) const {
  for (int k = 0; k < num_axes(); ++k)
    if (axes_[static_cast<size_t>(k)].name == name) return k;
  return -1;
}

MeshShape::Coordinates MeshShape::coordinates(int rank) const {
  CHASSIS_CHECK(rank >= 0 && rank < world_size_, "rank outside the mesh");
  Coordinates out{};
  for (int k = num_axes() - 1; k >= 0; --k) {
    out[static_cast<size_t>(k)] = rank % size(k);
    rank /= size(k);
  }
  return out;
}

int MeshShape::rank(const Coordinates& coordinates) const {
  int out = 0;
  for (int k = 0; k < num_axes(); ++k) {
    const int at = coordinates[static_cast<size_t>(k)];
    CHASSIS_CHECK(at >= 0 && at < size(k), "coordinate outside its mesh axis");
    out = out * size(k) + at;
  }
  return out;
}

std::string MeshShape::text() const {
  std::string out;
  for (const MeshAxis& axis : axes_) {
    if (!out.empty()) out += ", ";
    out += axis.name + "=" + std::to_string(axis.size);
  }
  return out.empty() ? "one rank" : out;
}

}  // namespace chassis
