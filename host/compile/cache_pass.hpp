// The cache pass of generation: what the key-value cache holds for each attention. Keys and values are often computed
// position by position from fewer numbers, as all heads of latent attention are from one latent. The cache then holds
// those, and keys and values of all positions are computed from it whenever attention reads them.
#pragma once

#include "host/compile/resolved.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

// Sets what the nodes of `block` say about the cache. The values that are cached have the fewest bytes; of two choices
// with equal bytes, the one that computes less again. Keys and values themselves are cached unless the others have at
// most a quarter of their bytes. Runs after find_liveness.
void find_cached_values(ResolvedBlock& block, Dtype compute);

}  // namespace chassis
