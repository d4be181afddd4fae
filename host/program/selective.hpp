// Selective recompute: of the values that backward reads, a block keeps what is expensive to make, the outputs of
// products, attention and collectives, and makes others again, node by node, just before they are read.
#pragma once

#include "host/program/resolve.hpp"

namespace chassis {

// All ops of the node are cheap to run again: norms, rope, activations, sums, reshapes. One that a plugin brought is
// not, since nobody knows its cost.
bool is_cheap(const BlockType& block, const Node& node);

// The block as it runs with selective recompute: the same nodes, other lifetimes. It keeps the fewest bytes from which
// cheap nodes can make all that backward reads, hence never more than `block`; where two choices keep as many, the one
// that runs fewer nodes again. Every node runs at most twice, one that is not cheap once.
ResolvedBlock recompute_selectively(const ResolvedBlock& block, Dtype compute);

// The liveness pass of units that run selectively, behind that of all blocks.
void find_selective_liveness(ResolvedProgram& resolved, Dtype compute);

}  // namespace chassis
