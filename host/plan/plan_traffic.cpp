// Sums of what a step sends.
#include "host/plan/plan_traffic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/units.hpp"

namespace chassis {

std::vector<Traffic> traffic_of(const RankPlan& rank) {
  std::vector<Traffic> groups;
  for (const CommCount& count : rank.traffic) {
    if (count.bytes == 0) continue;  // receives
    auto known = std::find_if(groups.begin(), groups.end(), [&](const Traffic& g) { return g.group == count.group; });
    if (known == groups.end()) known = groups.insert(known, {count.group, 0, ""});
    known->bytes += count.bytes;
    known->text += fmt::format("{}{} {} in {} calls", known->text.empty() ? "" : ", ", count.op,
                               bytes_text(count.bytes), count.calls);
  }
  return groups;
}

std::vector<Traffic> largest_traffic(const std::vector<RankPlan>& ranks) {
  std::vector<Traffic> out;
  for (const RankPlan& rank : ranks)
    for (Traffic& group : traffic_of(rank)) {
      auto known = std::find_if(out.begin(), out.end(), [&](const Traffic& g) { return g.group == group.group; });
      if (known == out.end())
        out.push_back(std::move(group));
      else if (group.bytes > known->bytes)
        *known = std::move(group);
    }
  return out;
}

}  // namespace chassis
