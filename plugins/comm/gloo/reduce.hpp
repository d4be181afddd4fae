// Sums, averages and maxima of several ranks' pieces, in the order of the ranks.
#pragma once

#include <cstdint>
#include <span>

namespace comm_gloo {

// out[i] = reduction over the sources of source[i]. Half types are added in fp32 and rounded once. `out` may be one of
// the sources.
void reduce_pieces(std::span<const void* const> sources, void* out, uint64_t count, uint32_t dtype, uint32_t reduce);

}  // namespace comm_gloo
