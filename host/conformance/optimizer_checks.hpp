// Conformance tests of an optimizer. No oracle exists for an arbitrary update rule, so the tests cover the properties
// that the host relies on when it shards, saves and repeats a run.
#pragma once

#include <string>
#include <vector>

#include "host/execute/optimizer_plugin.hpp"

namespace chassis {

// [step] All failures, with both numbers; empty if none. Runs on the CPU; takes well under a second. Throws the error
// of the optimizer's step if that fails. Tests:
//   - states have roles that can be file names, known dtypes, shapes and granularities, and start at a value that their
//     dtype has; descriptions do not change
//   - a step moves parameters, and all values stay finite
//   - zero gradients without decay leave parameters unchanged; so does lr = 0
//   - the first step decays each parameter by lr · weight_decay of its value, with any gradient; one rate per tensor
//   - lr_scale is a factor of lr, one per tensor
//   - the same input gives the same bits: repeated, with one thread, and with doubled gradients and a scale of 1/2,
//     on the host or on the device
//   - `another` instance continues from the states with the same bits, as after a resume
//   - if states may be cut, steps on the pieces of a parameter, also empty ones, give the same parameter and states as
//     steps on the whole one, scalar states included
// Parameters are a weight, a larger one, a norm and an embedding.
std::vector<std::string> optimizer_failures(const OptimizerPlugin& plugin, const OptimizerPlugin& another);

}  // namespace chassis
