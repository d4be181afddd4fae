// Computes the sizes of the mesh's axes from the user's settings and the number of ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {

struct AxisRequest {
  std::string name;  // "dp_shard"
  int64_t size = 1;  // -1: the rest, which is the ranks that the other axes leave
  bool by_user = false;
  SourcePosition where;
};

// The sizes in the order given, slowest first. Throws a config error that names the key and both numbers if two sizes
// are -1, or if the product is not the number of ranks (with a rest: does not divide it).
std::vector<std::pair<std::string, int>> axis_sizes(const std::vector<AxisRequest>& requests, int world_size);

}  // namespace chassis
