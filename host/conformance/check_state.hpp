// What a process is made of and a plugin could change: compared before and after a test.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace chassis::check {

struct ProcessState {
  // By name: working folder, environment, locale, signals, masks, floating-point mode, limits.
  std::map<std::string, std::string> settings;
  std::map<std::string, std::string> descriptors;  // number → what it is
  std::map<std::string, std::string> threads;      // id → name
};

ProcessState look_at_process();
// Names of kTraceTests with what differs, in words. Threads only if `with_threads`.
std::vector<std::pair<std::string, std::string>> differences(const ProcessState& before, const ProcessState& after,
                                                             bool with_threads);

}  // namespace chassis::check
