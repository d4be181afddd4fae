// Tests of what an objective computes with one set of options.
#pragma once

#include <string>
#include <vector>

#include "host/objective/objective_plugin.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

// All that an objective computes from samples, to compare objectives with each other.
struct ObjectiveNumbers {
  ObjectiveDesc desc;
  std::vector<double> numbers;                       // terms, sums, gradients and metrics
  bool equals(const ObjectiveNumbers& other) const;  // bits; all NaN are equal
};
ObjectiveNumbers objective_numbers(const ObjectivePlugin& plugin);

// All failures; empty if none. `another` has the same options as `instance`. The tests are listed in
// objective_checks.hpp.
std::vector<std::string> number_failures(const Instance& instance, const Instance& another);

}  // namespace chassis
