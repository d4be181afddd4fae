// The tiles that a provider's infer lists for a node: what it may say, and whether the chosen one fits into the shared
// memory of the device.
#pragma once

#include <string>
#include <vector>

#include "host/compile/resolved.hpp"

namespace chassis {

// A copy of the list. Throws a plugin error that begins with `context` if the list is not valid.
std::vector<chassis_tile_t> tiles_of(const chassis_infer_t& infer, const std::string& context);

// Why the node's tile does not fit, with the needed bytes, the limit, and the tiles that fit. Empty if it fits, and if
// the node has no tiles or the device no known limit.
std::string tile_refusal(const Node& node, bool has_backward, const ResolveOptions& options);

// "128 × 64": queries and keys.
std::string tile_text(const chassis_tile_t& tile);

}  // namespace chassis
