// Who among the ranks that hold the same writes and reads it: shared out by bytes. Pure arithmetic, the same on every
// rank.
#pragma once

#include <span>

#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// Gives every tensor that is replicated along mesh axes an owner (OwnerRule::kGiven), the largest first, each to the
// replica whose ranks have least to do so far; the order of `tensors` is all the same. Where what cannot be chosen is
// even, no rank owns more than the mean and the largest tensor. All others are spread by name.
void balance_owners(std::span<Descriptor> tensors, const MeshShape& mesh);

}  // namespace chassis
