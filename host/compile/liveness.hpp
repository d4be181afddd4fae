// The liveness pass: when each value of a block can be dropped, which output may reuse the memory of an input, and the
// bytes that are then alive at the planned sizes.
#pragma once

#include <span>

#include "host/compile/resolve.hpp"

namespace chassis {

// Sets the lifetimes and byte counts of `block` and its nodes; may be called again. Throws a config error for a value
// that is larger than any device.
void find_liveness(const Program& program, const ProgramLayout& layout, const ResolveOptions& options,
                   ResolvedBlock& block);

// The input whose memory output 0 may reuse, among `dead`, the values that die with the node; -1: none. Only values
// that a node of the block made, and that no reshape or collective aliases, may be overwritten.
int overwritable_input(const BlockType& block, const Node& node, std::span<const ValueId> dead);

// True if the node's output decides which values are computed, so that it must not be computed again.
bool is_choice(const BlockType& block, const Node& node);

}  // namespace chassis
