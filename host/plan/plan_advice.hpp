// Changes of the configuration that save memory, each planned in full, the largest gain first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/plan/plan.hpp"

namespace chassis {

// Bytes that the rank that sends most in a group sends there in a step, before and after a change.
struct TrafficChange {
  std::string group;  // "tp"
  uint64_t before = 0, after = 0;
};

struct Advice {
  std::string change;                  // "recompute.mode = \"full\""; several are joined by " + "
  std::vector<std::string> overrides;  // the overrides that make the change
  int world_size = 0;
  uint64_t peak_bytes = 0;  // peak of the rank that needs most
  int64_t saved_bytes = 0;
  bool fits = false;
  bool changes_training = false;  // other parameters are trained, or the frozen ones are stored in fewer bits
  std::vector<TrafficChange> traffic;  // for all groups; empty if it changes in none
};

struct AdviceList {
  std::vector<Advice> single;  // changes that save something, the largest gain first
  // Several changes together, if no single one that trains the same parameters is enough; if possible on the same
  // number of ranks and without an adapter.
  std::optional<Advice> together;
  // Changes that the configuration does not allow, with the reason.
  std::vector<std::pair<std::string, std::string>> refused;
};

// `plan` is the plan of `request`, and does not fit or is tight.
AdviceList advise(const PlanRequest& request, const Plan& plan);

}  // namespace chassis
