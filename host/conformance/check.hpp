// `chassis plugins check FILE.so`: the conformance tests of a plugin. Each test runs in a separate process, so that a
// crash, an exit or a hang is a failure of one test.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/conformance/check_types.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

struct CheckResult {
  std::string test;  // "negotiation/newer-host"
  CheckOutcome outcome = CheckOutcome::kPassed;
  std::string text;  // why it failed, was skipped or not run; for a passed test, what it left out
  double seconds = 0;
  std::string cause = {};
  bool has_crashed = false;  // by a signal
};

inline constexpr double kTestShare = 0.15;

struct CheckRequest {
  std::string path;               // path of the plugin
  std::string self;               // the program to run as `SELF plugins check-in-process FILE TEST`
  std::vector<std::string> only;  // names or groups of tests; empty: all
  std::chrono::milliseconds total_timeout = std::chrono::seconds(300);  // for all tests
  std::chrono::milliseconds timeout{0};                                 // for each; 0: kTestShare of the total
  std::function<void(const CheckResult&)> report = {};                  // called with each result when it is known
  std::vector<std::string> arguments = {};                              // appended to the arguments of `self`
  // If set, runs a test in a copy of this process, in place of a new process of `self`: does what run_check_in_process
  // does, and returns its exit code.
  std::function<int(const std::string& test)> in_child = {};
};

// The names of all tests, in order.
std::vector<std::string> check_names();
// Throws before the first test: a config error if the file does not exist, a plugin error if it is not a plugin or a
// name in `only` is unknown. Throws a config error for given options that no member takes, and EndOfChild in copies of
// the process.
std::vector<CheckResult> run_checks(const CheckRequest& request);
bool conforms(const std::vector<CheckResult>& results);
// One line: "passed   load/entry (0.1 s)", with the reason on further lines.
std::string check_result_text(const CheckResult& result);
// The summary: "x.so conforms: 31 passed, 2 not applicable".
std::string check_summary_text(const std::string& path, const std::vector<CheckResult>& results);
Json check_json(const std::string& path, const std::vector<CheckResult>& results);
// run_checks, then prints the results to stdout, as lines and a summary or as one JSON object. Returns the exit code:
// 0, or 3 if the plugin does not conform.
int check_plugin(CheckRequest request, bool as_json = false);

// Runs one test in this process.
CheckVerdict examine_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                                const CheckHooks& hooks = {});
// The same, for a process that run_checks started: writes the verdict to the pipe that run_checks reads. A test without
// a verdict has failed.
int run_check_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                         const CheckHooks& hooks = {});

}  // namespace chassis
