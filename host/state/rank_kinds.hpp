// Ranks that store the same amount of every tensor do the same, so that one of them speaks for all. Pure arithmetic.
#pragma once

#include <span>
#include <vector>

#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// All ranks, grouped: ascending in a group, groups by their first rank. Ranks of a group store as many elements of
// every tensor that is cut, and of whole tensors that only some ranks have, as many of the same sizes. Takes time in
// proportion to the number of ranks, whatever the number of tensors, where one set of axes divides all of them.
std::vector<std::vector<int>> rank_kinds(std::span<const Descriptor* const> tensors, const MeshShape& mesh);

}  // namespace chassis
