// The sizes of the mesh's axes from what the user wrote and how many ranks there are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {

struct AxisRequest {
  std::string name;  // "dp_shard"
  int64_t size = 1;  // -1: the rest
  bool by_user = false;
  SourcePosition where;
};

// In the order given, slowest first. Throws a config error that names the key and both numbers: two of -1, a product
// that is not the number of ranks, a rest that does not divide.
std::vector<std::pair<std::string, int>> axis_sizes(const std::vector<AxisRequest>& requests, int world_size);

}  // namespace chassis
