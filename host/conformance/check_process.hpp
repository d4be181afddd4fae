// Runs one test in a child process and collects its verdict, output, exit status and leftover files.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/conformance/check_types.hpp"

namespace chassis::check {

// The descriptor of the verdict's pipe in the child process.
inline constexpr int kVerdictDescriptor = 3;
// Makes the child process write the call in progress to its stderr.
inline constexpr int kSayCallSignal = SIGUSR2;

struct ProcessResult {
  int status = 0;
  bool timed_out = false;
  bool left_children = false;
  std::string out, err;                 // its stdout and stderr
  std::optional<CheckVerdict> verdict;  // none: the test did not reach its end
  std::vector<std::string> files;       // left in its working, home and temporary folder
};

// Runs the program in an empty folder and a new process group. Kills the rest of the group when the program ends. With
// `in_child` and one thread, the child process is instead a copy of this one, which is ready at once; it calls
// `in_child` and then throws EndOfChild, whose exit code main() must return. Loading LibTorch anew would take 0.25 s.
ProcessResult run_process(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout,
                          const std::function<int()>& in_child = {});

std::string verdict_text(const CheckVerdict& verdict);
std::optional<CheckVerdict> read_verdict(const std::string& text);

}  // namespace chassis::check
