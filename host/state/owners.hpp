// Chooses which of the ranks that hold the same elements writes and reads them, balanced by bytes. Pure arithmetic, the
// same on every rank.
#pragma once

#include <span>

#include "host/state/descriptor.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

// Gives every tensor that is replicated along mesh axes an owner (OwnerRule::kGiven): the largest tensor first, each to
// the replica whose ranks own the fewest bytes so far. The order of `tensors` does not matter. If all other tensors are
// distributed evenly, no rank owns more bytes than the mean plus the largest tensor. Other tensors get
// OwnerRule::kSpread.
void balance_owners(std::span<Descriptor> tensors, const MeshShape& mesh);

}  // namespace chassis
