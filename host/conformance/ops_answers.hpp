// Conformance tests of an ops provider's answers about its nodes.
#pragma once

#include <string>
#include <vector>

#include "host/compile/resolve.hpp"

namespace chassis {

// [control] Asks the provider again about each of its nodes in `block`, and compares. Tests:
//   - claim gives the same cost, and infer the same answer
//   - infer sets no bit and no saved tensor that means nothing for the node
//   - FORWARD_BACKWARD only on nodes whose one output is a loss
std::vector<std::string> answer_failures(const OpsProvider& provider, const Program& program,
                                         const ProgramLayout& layout, const ResolvedBlock& block,
                                         const ResolveOptions& options);

}  // namespace chassis
