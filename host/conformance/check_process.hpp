// One test in a process of its own: what it says, what it writes, how it ends and what it leaves behind.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "host/conformance/check.hpp"

namespace chassis::check {

// The pipe of the verdict in the process of a test.
inline constexpr int kVerdictDescriptor = 3;

struct Ended {
  int status = 0;
  bool timed_out = false;
  bool left_children = false;
  std::string out, err;                 // what it wrote there
  std::optional<CheckVerdict> verdict;  // none: it did not reach its end
  std::vector<std::string> files;       // that it left in its working, home and temporary folder
};

// Runs the program in an empty folder, with its own process group, which ends with it.
Ended run_process(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout);

std::string verdict_text(const CheckVerdict& verdict);
std::optional<CheckVerdict> read_verdict(const std::string& text);

}  // namespace chassis::check
