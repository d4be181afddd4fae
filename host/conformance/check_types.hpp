// The input of a test of a plugin, and its verdict.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/json.hpp"
#include "host/config/option.hpp"
#include "host/plugin/instance.hpp"

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

// Thrown in a copy of the process when its test is over. main() must return this exit code.
struct EndOfChild {
  int exit_code;
};

// Traces that tests leave in the process or the file system, reported once for all tests. These results come last, and
// only if something was found or all tests ran.
inline constexpr std::string_view kTraceTests[] = {"process/output",  "process/files",    "process/descriptors",
                                                   "process/threads", "process/children", "process/state"};

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

}  // namespace chassis
