// State of the process that a plugin could change, compared before and after a test.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace chassis::check {

struct ProcessState {
  // By name: working folder, environment, locale, signals, masks, floating-point mode, limits.
  std::map<std::string, std::string> settings;
  std::map<std::string, std::string> descriptors;  // number → target
  std::map<std::string, std::string> threads;      // id → name
};

ProcessState read_process_state();
// The differences, each with its name from kTraceTests. Compares threads only if `with_threads`.
std::vector<std::pair<std::string, std::string>> differences(const ProcessState& before, const ProcessState& after,
                                                             bool with_threads);

}  // namespace chassis::check
