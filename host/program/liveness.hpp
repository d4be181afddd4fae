// The liveness pass: when each value of a block can go, which output may take over the memory of an input, and how many
// bytes that leaves alive at the planned sizes.
#pragma once

#include <span>

#include "host/program/resolve.hpp"

namespace chassis {

// Fills in what `block` and its nodes say of lifetimes and bytes, whatever they said before. Throws a config error for
// a value of a size that no device has.
void find_liveness(const Program& program, const ProgramLayout& layout, const ResolveOptions& options,
                   ResolvedBlock& block);

// The input, of those that die with the node, in whose memory output 0 may lie; -1: none. Only what a node of the block
// made, and that no reshape aliases, may be overwritten.
int overwritable_input(const BlockType& block, const Node& node, std::span<const ValueId> dead);

}  // namespace chassis
