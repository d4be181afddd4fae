// Selective recompute: of the values that backward reads, a block keeps those that are expensive to compute (outputs of
// matrix products, attention and collectives) and computes the others again, node by node, just before they are read.
#pragma once

#include <cstdint>
#include <optional>

#include "host/compile/recompute_mode.hpp"
#include "host/compile/resolve.hpp"

namespace chassis {

// True if all ops of the node are cheap to run again: norms, rope, activations, sums, reshapes. An op that a plugin
// defines is not, because its cost is unknown.
bool is_cheap(const BlockType& block, const Node& node);

// The block as it runs with selective recompute: the same nodes with other lifetimes. It keeps the fewest bytes from
// which cheap nodes can compute all that backward reads, so never more than `block`; of two choices with equal bytes,
// the one that runs fewer nodes again. Cheap nodes run at most twice, the others once.
ResolvedBlock recompute_selectively(const ResolvedBlock& block, Dtype compute);

// The block as a unit of that mode runs it; nullopt: unchanged. Only this function makes blocks for modes.
std::optional<ResolvedBlock> block_in_mode(const ResolvedBlock& block, BlockRecompute mode, Dtype compute);
// Bytes that the block holds between forward and backward in that mode, without its inputs.
uint64_t held_bytes(const ResolvedBlock& block, BlockRecompute mode, Dtype compute);

// The liveness pass of units that recompute selectively. Runs after find_liveness of all blocks.
void find_selective_liveness(ResolvedProgram& resolved, Dtype compute);

}  // namespace chassis
