// The parent process of `plugins check`: selects tests, runs each in a child process, and turns its end into a result.
#include "host/conformance/check.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/conformance/check_bench.hpp"
#include "host/conformance/check_process.hpp"
#include "host/plugin/manifest.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
using check::ProcessResult;

bool is_wanted(std::string_view name, const std::vector<std::string>& only) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& wanted) {
           return name == wanted || name.starts_with(wanted + "/") || name == "process/" + wanted;
         });
}

// Refuses a file that is not a plugin once, instead of in every test.
void expect_plugin(const std::string& path) {
  switch (path_kind(path)) {
    case PathKind::kAbsent:
      throw config_error(fmt::format("there is no file {}", printable(path)))
          .hint("name the shared library of a plugin, such as build/my_attention.so");
    case PathKind::kFile:
      break;
    default:
      throw config_error(fmt::format("{} is not a file", printable(path)))
          .hint("name the shared library of a plugin, such as build/my_attention.so");
  }
  read_plugin_file(path);
}

void expect_known(const std::vector<std::string>& only) {
  std::vector<std::string> names = check_names();
  names.insert(names.end(), std::begin(kTraceTests), std::end(kTraceTests));
  for (const std::string& wanted : only) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return is_wanted(name, {wanted}); }))
      throw plugin_error(fmt::format("there is no check '{}'; the checks are {}", wanted, fmt::join(names, ", ")));
  }
}

std::string with_output(std::string text, const ProcessResult& ended) {
  for (const std::string* output : {&ended.out, &ended.err})
    if (!output->empty()) text += "\n" + *output;
  return text;
}

// The result of a test, determined by how its process ended.
CheckResult result_of(const std::string& test, const ProcessResult& ended, std::chrono::milliseconds limit) {
  CheckResult result{test, CheckOutcome::kFailed, "", 0};
  if (ended.timed_out) {
    result.text = with_output(fmt::format("did not end within {} ms", limit.count()), ended);
  } else if (WIFSIGNALED(ended.status)) {
    const int signal = WTERMSIG(ended.status);
    result.text = with_output(fmt::format("crashed with signal {} ({})", signal, ::strsignal(signal)), ended);
    result.has_crashed = true;
  } else if (!ended.verdict) {
    result.text = with_output(
        fmt::format("ended the process with exit code {} before the test was over", WEXITSTATUS(ended.status)), ended);
  } else if (WEXITSTATUS(ended.status) != 0) {
    result.text = with_output(
        fmt::format("the process ended with exit code {} after the test, expected 0", WEXITSTATUS(ended.status)),
        ended);
  } else {
    result.outcome = ended.verdict->outcome;
    result.text = ended.verdict->text;
  }
  return result;
}

// Output and traces of all tests: each kind once, with the first test that showed it.
class Traces {
 public:
  void add(const std::string& test, const ProcessResult& ended) {
    if (ended.verdict)
      for (const auto& [name, text] : ended.verdict->traces) add(name, test, text);
    // The output of a process that crashed or hung is already in that test's result.
    if (!WIFEXITED(ended.status) || ended.timed_out) return;
    for (const auto& [where, text] : {std::pair("stdout", &ended.out), std::pair("stderr", &ended.err)})
      if (!text->empty())
        add("process/output", test,
            fmt::format("it wrote to {}, which belongs to the program: \"{}\"; use {}", where, printable(*text),
                        "chassis.log/1"));
    std::vector<std::string> files = ended.files;
    // A test that was killed could not remove its own folders.
    if (!ended.verdict)
      std::erase_if(files, [](const std::string& name) {
        return name.starts_with("chassis-tokenizer-") || name.starts_with("chassis-check-");
      });
    if (!files.empty())
      add("process/files", test,
          fmt::format("it left files behind: {}", printable(fmt::format("{}", fmt::join(files, ", ")))));
    if (ended.left_children) add("process/children", test, "it left a process running");
  }

  std::vector<CheckResult> results(bool all_have_run) const {
    std::vector<CheckResult> out;
    for (const std::string_view name : kTraceTests) {
      const auto found = found_.find(name);
      if (found == found_.end()) {
        if (all_have_run) out.push_back({std::string(name), CheckOutcome::kPassed, "", 0});
        continue;
      }
      const Found& first = found->second;
      std::string text = "in " + first.test;
      if (first.num_tests > 1) text += fmt::format(" and {} other tests", first.num_tests - 1);
      out.push_back({std::string(name), CheckOutcome::kFailed, text + ": " + first.text, 0});
    }
    return out;
  }

 private:
  struct Found {
    std::string test, text, last_test;
    int num_tests = 1;
  };
  void add(const std::string& name, const std::string& test, const std::string& text) {
    const auto [at, fresh] = found_.try_emplace(name, Found{test, text, test});
    if (fresh || at->second.last_test == test) {
      if (!fresh && at->second.test == test) at->second.text += "\n" + text;
      return;
    }
    at->second.last_test = test;
    ++at->second.num_tests;
  }
  std::map<std::string, Found, std::less<>> found_;
};

class Run {
 public:
  explicit Run(const CheckRequest& request) : request_(request), deadline_(Clock::now() + request.total_timeout) {}

  std::vector<CheckResult> run() {
    // Traces are complete only if all tests run.
    const bool all = std::any_of(std::begin(kTraceTests), std::end(kTraceTests),
                                 [&](std::string_view name) { return is_wanted(name, request_.only); });
    for (const check::Test& test : check::tests())
      if (all || is_wanted(test.name, request_.only)) keep(run(test));
    for (CheckResult& result : traces_.results(all))
      if (result.outcome == CheckOutcome::kFailed || is_wanted(result.test, request_.only)) keep(std::move(result));
    std::erase_if(results_, [this](const CheckResult& result) { return !is_reported(result); });
    return std::move(results_);
  }

 private:
  CheckResult run(const check::Test& test) {
    const std::string name(test.name);
    // If a test that this one needs has failed, this one would only repeat that failure.
    for (std::string_view base = test.needs; !base.empty(); base = check::find_test(base)->needs)
      for (const CheckResult& earlier : results_) {
        if (earlier.test != base) continue;
        // Guards may show the cause of a crash.
        if (earlier.has_crashed && base == test.needs && test.guard != check::Guard::kNone) continue;
        if (earlier.outcome == CheckOutcome::kFailed || earlier.outcome == CheckOutcome::kSameCause)
          return {name, CheckOutcome::kNotRun, std::string(base) + " failed", 0};
        if (earlier.outcome == CheckOutcome::kSkipped || earlier.outcome == CheckOutcome::kUntested)
          return {name, CheckOutcome::kSkipped, "same reason as " + std::string(base), 0};
      }
    const auto begin = Clock::now();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - begin);
    if (left.count() <= 0)
      return {name, CheckOutcome::kNotRun,
              fmt::format("the time limit of {} ms for all tests is over", request_.total_timeout.count()), 0};
    const auto share = std::chrono::milliseconds(
        static_cast<int64_t>(kTestShare * static_cast<double>(request_.total_timeout.count())));
    const auto limit = std::min(left, request_.timeout.count() > 0 ? request_.timeout : share);
    std::vector<std::string> arguments = {request_.self, "plugins", "check-in-process",
                                          std::filesystem::absolute(request_.path).string(), name};
    arguments.insert(arguments.end(), request_.arguments.begin(), request_.arguments.end());
    std::function<int()> in_child;
    if (request_.in_child) in_child = [&] { return request_.in_child(name); };
    const ProcessResult ended = check::run_process(arguments, limit, in_child);
    if (ended.verdict && ended.verdict->outcome == CheckOutcome::kBadOption)
      throw config_error(ended.verdict->text).hint("chassis plugins info --options lists options");
    CheckResult result = result_of(name, ended, limit);
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    traces_.add(name, ended);
    if (result.outcome == CheckOutcome::kFailed)
      for (const CheckResult& earlier : results_)
        if (earlier.outcome == CheckOutcome::kFailed && earlier.text == result.text) {
          result.outcome = CheckOutcome::kSameCause;
          result.cause = earlier.test;
          break;
        }
    return result;
  }

  bool is_reported(const CheckResult& result) const {
    return result.test.starts_with("process/") || is_wanted(result.test, request_.only);
  }

  void keep(CheckResult result) {
    if (request_.report && is_reported(result)) request_.report(result);
    results_.push_back(std::move(result));
  }

  const CheckRequest& request_;
  const Clock::time_point deadline_;
  Traces traces_;
  std::vector<CheckResult> results_;
};

}  // namespace

std::vector<CheckResult> run_checks(const CheckRequest& request) {
  expect_known(request.only);
  expect_plugin(request.path);
  return Run(request).run();
}

bool conforms(const std::vector<CheckResult>& results) {
  return std::all_of(results.begin(), results.end(), [](const CheckResult& result) {
    return result.outcome == CheckOutcome::kPassed || result.outcome == CheckOutcome::kSkipped;
  });
}

}  // namespace chassis
