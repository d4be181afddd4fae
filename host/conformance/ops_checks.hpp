// Conformance tests of an ops provider: runs small programs forward and backward with it and with the oracles.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "host/compile/resolve.hpp"

namespace chassis {

struct ConformanceResult {
  size_t num_compared = 0;                          // programs in which the provider claimed a node
  std::vector<std::string> failures;                // with the op, the name of the result and both numbers
  std::vector<std::string> untested_patterns = {};  // the provider's patterns whose ops no program has
};

// [step] Runs programs of all ops, and one for each of the provider's patterns that these do not have, if the provider
// claims a node of the program, on the CPU, in fp32 and, where all claim it, in bf16. Bounds: 1e-4 and 2e-2 of the
// largest value. Forward outside of training is compared too. Repeated runs must give the same bits, and a node that is
// refused once must be refused again; answers about nodes are tested as ops_answers.hpp says. Together, `oracles` must
// cover all ops.
ConformanceResult compare_with_oracles(const OpsProvider& provider, std::span<const OpsProvider> oracles);

// The ops of these programs, and the attributes that they give, as "rope.factor". For tests.
std::set<std::string> ops_of_cases();

}  // namespace chassis
