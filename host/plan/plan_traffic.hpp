// The bytes that ranks send in a step, by group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/plan/plan_types.hpp"

namespace chassis {

// The bytes that a rank sends in one group in a step; `text` is "all_gather 257 GiB in 163 calls".
struct Traffic {
  std::string group;
  uint64_t bytes = 0;
  std::string text;
};
std::vector<Traffic> traffic_of(const RankPlan& rank);
// For each group, the traffic of the rank that sends most.
std::vector<Traffic> largest_traffic(const std::vector<RankPlan>& ranks);

}  // namespace chassis
