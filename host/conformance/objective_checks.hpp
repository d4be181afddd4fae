// Conformance tests of an objective.
#pragma once

#include <string>
#include <vector>

#include "host/conformance/check_types.hpp"

namespace chassis {

struct ObjectiveReport {
  std::vector<std::string> failures;
  std::string left_out;  // options that could not be varied; empty if none
};

// [step] Batches are random, with usual values, the values at the start of a run, and values up to ±1e4. Tests:
//   - the description does not change, and is the same for each instance with the same options
//   - the gradient of the loss, and that of each term, agrees with central differences; with STOPPED_RATIO, with those
//     for a change of new and old log-probabilities together
//   - all numbers are finite, and mismatches have no gradient
//   - terms, sums and gradients of a batch are those of its parts together; the order of units does not matter, and an
//     empty batch adds nothing
//   - prepare, evaluate and metrics give the same bits when they are repeated, after another batch, without gradients,
//     and in another instance
//   - steps leave no memory and no threads
//   - every option changes the description or a number, with some values of the others; values that the schema allows
//     work, or are refused with INVALID_ARGUMENT
//   - a plugin that has prepare asks for GLOBAL with some options
ObjectiveReport examine_objective(const CheckedMember& member);

}  // namespace chassis
