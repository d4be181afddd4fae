// `chassis plugins check FILE.so`: the conformance tests of a plugin. Each test runs in a separate process, so that a
// crash, an exit or a hang is a failure of one test.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/json.hpp"
#include "host/config/option.hpp"
#include "host/plugin/instance.hpp"
#include "host/plugin/services.hpp"

namespace chassis {

enum class CheckOutcome {
  kPassed,
  kFailed,
  kSkipped,    // not applicable
  kSameCause,  // failed like the earlier test that `cause` names
  kNotRun,     // `text` has the reason
  kUntested,   // its results could not be compared with anything, so it is not known whether it conforms
  kBadOption,  // only in a verdict: a given option does not exist, or cannot have the given value
};

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

// Thrown in such a copy when its test is over. main() must return this exit code.
struct EndOfChild {
  int exit_code;
};

// Traces that tests leave in the process or the file system, reported once for all tests. These results come last, and
// only if something was found or all tests ran.
inline constexpr std::string_view kTraceTests[] = {"process/output",  "process/files",    "process/descriptors",
                                                   "process/threads", "process/children", "process/state"};

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

// A member under test. `another` makes a second, active instance with `options` changed; it returns NULL if the plugin
// refuses these options with a message.
struct CheckedMember {
  Instance& instance;
  const std::vector<OptionSpec>& specs;
  std::function<std::unique_ptr<Instance>(const Json& options)> another;
  std::function<void(const std::string&)> note = {};  // says what a comparison left out
};
// Compares an instance with the reference of its kind; throws an Error with both numbers if they differ. Returns why it
// could not compare; empty if it could.
using NumericsCheck = std::function<std::string(const CheckedMember& member)>;
// Options for members that cannot be created from defaults, such as a model's config; null if it knows none.
using SampleOptions = std::function<Json(const MemberName& member, const std::vector<OptionSpec>& specs)>;
// Names and values of process state that the operating system does not show, such as the number of compute threads. No
// test may change them.
using ProcessFacts = std::function<std::vector<std::pair<std::string, std::string>>()>;
// From now on, a page without access follows (true) or precedes (false) each buffer. The returned function lists the
// writes past a buffer's end that did not reach the page.
using GuardBuffers = std::function<std::function<std::vector<std::string>()>(bool behind)>;

struct CheckHooks {
  // "name=value": values that replace defaults; every member takes those that it has.
  std::vector<std::string> given_options = {};
  NumericsCheck numerics = {};
  SampleOptions sample_options = {};
  ProcessFacts process_facts = {};
  GuardBuffers guard_buffers = {};
};

// The result of one test, sent by the process that ran it.
struct CheckVerdict {
  CheckOutcome outcome = CheckOutcome::kFailed;
  std::string text;
  std::vector<std::pair<std::string, std::string>> traces;  // a name of kTraceTests, and the finding
};

// Runs one test in this process.
CheckVerdict examine_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                                const CheckHooks& hooks = {});
// The same, for a process that run_checks started: writes the verdict to the pipe that run_checks reads. A test without
// a verdict has failed.
int run_check_in_process(const std::string& path, const std::string& test, ServiceProvider& services,
                         const CheckHooks& hooks = {});

}  // namespace chassis
