// Conformance tests of members of kind "sink".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/plugin/instance.hpp"

namespace chassis {

// All failures; empty if none. `another` returns an active instance with the default options. Works in a temporary
// folder. Tests:
//   - a run of 20 steps with names and values of every kind is accepted: evaluations, values that are new in a later
//     step, NaN and infinities, no value at all, texts of all types and of one that no header has
//   - the run continues in the same folder, from an earlier step
//   - start in a folder that does not exist, or at a file, fails or is accepted; the process continues, also in later
//     calls
//   - steps leave no memory and no threads; structs of a later minor version are accepted
std::vector<std::string> sink_failures(const std::function<std::unique_ptr<Instance>()>& another);

}  // namespace chassis
