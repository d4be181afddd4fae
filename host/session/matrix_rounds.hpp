// Which rank steps which matrix, for optimizers whose states need whole matrices that the layout pass divided.
#pragma once

#include <string>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// Whether one of the ranks that have a part of the matrix steps all of it.
bool is_stepped_whole(const Parameter& parameter);

// Matrices that the ranks along an axis step at the same time: coordinate i steps the i-th, and owns its states.
struct MatrixRound {
  std::string axis;
  std::vector<Parameter*> matrices;  // at most one for each coordinate
};
// The rounds in which the matrices among `trained` are stepped. Ranks that have a part of one matrix of a round have
// parts of all of them.
std::vector<MatrixRound> matrix_rounds(const std::vector<Parameter*>& trained, const MeshShape& mesh);

}  // namespace chassis
