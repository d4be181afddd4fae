// Whether an ops provider computes what the oracles compute: the same small programs, forward and backward, under both.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/program/resolve.hpp"

namespace chassis {

struct ConformanceResult {
  size_t num_compared = 0;            // programs in which the provider claimed a node
  std::vector<std::string> failures;  // with the op, the operand and both numbers
};

// [step] Runs every program that the provider claims a part of, in fp32 and, where all claim it, bf16, on the CPU.
// Bounds: 1e-4 and 2e-2 of the largest value. `oracles` complete each other.
ConformanceResult compare_with_oracles(const OpsProvider& provider, std::span<const OpsProvider> oracles);

}  // namespace chassis
