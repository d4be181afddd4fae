// Looks for the names of axes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

inline bool contains(const std::vector<std::string>& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Throws a plugin error if the mesh has no such axis. `verb` is what the strategy would do with it.
inline void expect_axis(const MeshShape& mesh, const std::string& axis, const char* verb) {
  if (mesh.find(axis) < 0)
    throw plugin_error("there is no axis '" + axis + "' to " + verb + "; the mesh is " + mesh.text());
}

}  // namespace chassis
