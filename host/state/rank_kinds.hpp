// Groups ranks that store the same amount of every tensor, so that one rank of a group represents all. Pure arithmetic.
#pragma once

#include <span>
#include <vector>

#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// All ranks in groups. Ranks ascend within a group, and groups are ordered by their first rank. Ranks of a group store
// the same number of elements of every tensor that is cut. They also store equally many whole tensors of each size,
// among those that only some ranks have. Takes time in proportion to the number of ranks, not of tensors, if the same
// axes divide all tensors.
std::vector<std::vector<int>> rank_kinds(std::span<const Descriptor* const> tensors, const MeshShape& mesh);

}  // namespace chassis
