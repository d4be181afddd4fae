// How the strategies of [[parallel]] divide the parameters. Plain data, the same on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chassis/kind/parallel.h"
#include "host/state/dtype.hpp"

namespace chassis {

// How one parameter is divided, as a strategy placed it.
struct ShardRule {
  uint32_t kind = CHASSIS_SHARD_REPLICATE;
  std::vector<std::string> axes;          // axes that divide it
  std::vector<std::string> replica_axes;  // the other axes over which its gradient is summed
  // Set by the optimizer's granularity. FLAT is cut at multiples of `block` elements. With an `owner` the parameter is
  // not cut: that coordinate along the axes holds all of it, the others nothing.
  int64_t block = 1;
  int owner = -1;
  bool resident = false;
  Dtype gather_dtype = Dtype::f32;
  Dtype reduce_dtype = Dtype::f32;
  bool offload = false, pin_memory = false;
  bool operator==(const ShardRule&) const = default;
};

// The place of one parameter of the table on all ranks.
struct ParameterPlacement {
  ShardRule rule;
  int strategy = -1;             // index of the strategy that places it; -1: none, and ranks that read it have it whole
  std::vector<int> coordinates;  // the pipeline's coordinates that read it, first stage first; empty without a pipeline
  // Axes over which its gradient is still to be summed after its strategy has reduced it.
  std::vector<std::string> partial_over;

  bool is_placed() const { return strategy >= 0; }
};

}  // namespace chassis
