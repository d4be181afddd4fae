// `chassis plugins check FILE.so`: what every plugin must withstand. Each test runs in a process of its own, so that a
// crash, an exit or a hang is a finding like any other.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

enum class CheckOutcome {
  kPassed,
  kFailed,
  kSkipped,    // not applicable
  kSameCause,  // failed as an earlier test did, which `cause` names
  kNotRun,     // `text` says why
};

struct CheckResult {
  std::string test;  // "negotiation/newer-host"
  CheckOutcome outcome = CheckOutcome::kPassed;
  std::string text;  // why it failed, was skipped or not run; or what a test that passed left out
  double seconds = 0;
  std::string cause = {};
};

struct CheckRequest {
  std::string path;               // of the plugin
  std::string self;               // the program that understands `plugins check-in-process FILE TEST`
  std::vector<std::string> only;  // names or groups of tests; empty = all
  std::chrono::milliseconds timeout = std::chrono::seconds(45);         // of each test
  std::chrono::milliseconds total_timeout = std::chrono::seconds(300);  // of all of them
  std::function<void(const CheckResult&)> report = {};                  // called as results come
  std::vector<std::string> arguments = {};                              // further ones for `self`
};

// What tests leave behind is found beside them and reported once for all: these names come last, and only when
// something was found or all tests have run.
inline constexpr std::string_view kTraceTests[] = {"process/output",  "process/files",    "process/descriptors",
                                                   "process/threads", "process/children", "process/state"};

// The names of all tests that can be run, in order.
std::vector<std::string> check_names();
// Throws before the first test: a config error if there is no such file, a plugin error if the file is no plugin or a
// name in `only` is unknown.
std::vector<CheckResult> run_checks(const CheckRequest& request);
bool conforms(const std::vector<CheckResult>& results);
// One line: "passed   load/entry (0.1 s)", with the reason on further lines.
std::string check_result_text(const CheckResult& result);
// The closing line: "x.so conforms: 31 passed, 2 not applicable".
std::string check_summary_text(const std::string& path, const std::vector<CheckResult>& results);
Json check_json(const std::string& path, const std::vector<CheckResult>& results);
// run_checks with the results printed to stdout, as lines and a closing one or as one JSON object; returns the exit
// code: 0, or 3 if the plugin does not conform.
int check_plugin(CheckRequest request, bool as_json = false);

// A member under test. `another` makes a second instance, active, whose options differ from the first one's as given;
// NULL if the plugin refuses them in words.
struct CheckedMember {
  Instance& instance;
  const std::vector<OptionSpec>& specs;
  std::function<std::unique_ptr<Instance>(const Json& options)> another;
};
// Compares an instance with the reference of its kind; throws an Error with both numbers. Empty: nothing is wrong. Else
// why there is nothing to compare with.
using NumericsCheck = std::function<std::string(const CheckedMember& member)>;
// Options for members that can not be made from defaults, such as a model's config; null if it knows none.
using SampleOptions = std::function<Json(const MemberName& member, const std::vector<OptionSpec>& specs)>;
// What the process is beyond what the operating system knows, such as its number of threads for computing: names and
// values, which no test may change.
using ProcessFacts = std::function<std::vector<std::pair<std::string, std::string>>()>;
// From now on buffers end (true) or begin (false) beside a page that nobody may touch. The result lists, when asked,
// what was written over their ends within that page's reach.
using GuardBuffers = std::function<std::function<std::vector<std::string>()>(bool behind)>;

struct CheckHooks {
  NumericsCheck numerics = {};
  SampleOptions sample_options = {};
  ProcessFacts process_facts = {};
  GuardBuffers guard_buffers = {};
};

// What one test saw, as the process that ran it tells.
struct CheckVerdict {
  CheckOutcome outcome = CheckOutcome::kFailed;
  std::string text;
  std::vector<std::pair<std::string, std::string>> traces;  // a name of kTraceTests, and what was found
};

// The other side of run_checks: runs one test here.
CheckVerdict examine_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                                const CheckHooks& hooks = {});
// The same for the process that run_checks started: the verdict goes into its pipe, without which nothing counts as
// passed.
int run_check_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                         const CheckHooks& hooks = {});

}  // namespace chassis
