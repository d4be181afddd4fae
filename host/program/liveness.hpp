// The liveness pass: when each value of a block can go, which output may take over the memory of an input, and how many
// bytes that leaves alive at the planned sizes.
#pragma once

#include "host/program/resolve.hpp"

namespace chassis {

// Fills in what `block` and its nodes say of lifetimes and bytes, whatever they said before. Throws a config error for
// a value of a size that no device has.
void find_liveness(const Program& program, const ProgramLayout& layout, const ResolveOptions& options,
                   ResolvedBlock& block);

}  // namespace chassis
