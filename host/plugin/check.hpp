// `chassis plugins check FILE.so`: what every plugin must withstand. Each test runs in a process of its own, so that a
// crash or a hang is a finding like any other.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

enum class CheckOutcome { kPassed, kFailed, kSkipped };

struct CheckResult {
  std::string test;  // "negotiation/newer-host"
  CheckOutcome outcome = CheckOutcome::kPassed;
  std::string text;  // why it failed or was skipped
  double seconds = 0;
};

struct CheckRequest {
  std::string path;               // of the plugin
  std::string self;               // the program that understands `plugins check-in-process FILE TEST`
  std::vector<std::string> only;  // names or groups of tests; empty = all
  std::chrono::milliseconds timeout = std::chrono::seconds(45);  // of each
  std::function<void(const CheckResult&)> report = {};           // called as results come
};

// The names of all tests, in order.
std::vector<std::string> check_names();
// Throws a plugin error for an unknown name in `only`.
std::vector<CheckResult> run_checks(const CheckRequest& request);
// One line: "passed  load/entry (0.1 s)", with the reason on further lines.
std::string check_result_text(const CheckResult& result);
// run_checks with the results printed to stdout and a closing line; returns the exit code: 0, or 3 if one failed.
int check_plugin(CheckRequest request);

// Compares an instance with the reference of its kind; throws an Error with both numbers. False: nothing to compare
// with.
using NumericsCheck = std::function<bool(Instance& instance)>;
// Options for members that can not be made from defaults, such as a model's config; null if it knows none.
using SampleOptions = std::function<Json(const MemberName& member, const std::vector<OptionSpec>& specs)>;

struct CheckHooks {
  NumericsCheck numerics = {};
  SampleOptions sample_options = {};
};

// The other side of run_checks: runs one test here and prints the reason if it fails. Returns 0 passed, 1 failed,
// 77 skipped.
int run_check_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                         const CheckHooks& hooks = {});

}  // namespace chassis
