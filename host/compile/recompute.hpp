// The recompute pass: chooses, for each block of a repeated chain, how much of what backward reads is kept, and how
// much is computed again.
#pragma once

#include <cstdint>
#include <vector>

#include "host/compile/recompute_mode.hpp"

namespace chassis {

struct Program;
struct ResolvedProgram;

// The choices for chains of `num_blocks`, ordered by their cost in time: none (0), selective in the first block
// (1) … in all (num_blocks), full in the first and selective in the others … full in all (2 · num_blocks). Each takes
// as much memory as the one before, or less.
Recompute recompute_of_cost(int64_t cost, int64_t num_blocks);

// The number of blocks in the longest chain that repeats blocks; 0 if there is none.
int64_t max_recomputed_blocks(const Program& program);

// By unit; chains of one block are left alone.
std::vector<BlockRecompute> recompute_of_units(const Program& program, const Recompute& recompute);
// The pass: marks the units of a program that is resolved for training; others are left alone.
void apply_recompute(const Program& program, const Recompute& recompute, ResolvedProgram& resolved);

}  // namespace chassis
