// Conformance tests of the products that a quant plugin computes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/compile/quant_plugin.hpp"
#include "host/compile/resolve.hpp"

namespace chassis {

struct QuantProducts {
  size_t num_compared = 0;
  std::string left_out;               // why none was compared
  std::vector<std::string> failures;  // with the product, the name of the result and both numbers
};

// [step] Compares linears whose weights the plugin stores, and those of experts if it stores them, forward and
// backward, on the CPU in fp32 and, where it claims them, in bf16, with the oracles' linears of the decoded weights.
// Bounds: 1e-4 and 2e-2 of the largest value; repeated runs must give the same bits. The plugin must be configured.
// Together, `oracles` must cover linear, grouped_linear and add.
QuantProducts compare_quant_products(const QuantPlugin& plugin, std::span<const OpsProvider> oracles);

}  // namespace chassis
