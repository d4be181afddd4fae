// `plugins check` on correct and faulty fixtures of tests/host/plugin.
#include "host/conformance/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "host/base/json.hpp"
#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

// Sanitizers are slow, and add threads and exports.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

class PluginCheck : public testing::Test {
 protected:
  PluginCheck() { ::setenv("XDG_CACHE_HOME", scratch_.path().c_str(), 1); }
  ~PluginCheck() override { ::unsetenv("XDG_CACHE_HOME"); }

  static CheckRequest request(const std::string& file, const std::vector<std::string>& only) {
    return {fixture(file), CHASSIS_TEST_BINARY_DIR "/tests/host/conformance/plugin_check_program", only};
  }
  // The message of one test, which must fail.
  static std::string failure(const std::string& file, const std::string& test) {
    CheckRequest one = request(file, {test});
    one.timeout = std::chrono::seconds(test != "life/cycle" ? 45 : kSanitized ? 10 : 4);
    const auto results = run_checks(one);
    EXPECT_EQ(results.front().outcome, CheckOutcome::kFailed) << results.front().text;
    return results.front().text;
  }

  ScratchFolder scratch_;
};

TEST_F(PluginCheck, PassesACorrectPlugin) {
  const auto results = run_checks(request("good/plain.so", {}));
  for (const CheckResult& result : results) {
    if (kSanitized && (result.test == "static/exports" || result.test == "life/thousand")) continue;
    const CheckOutcome expected = result.test.starts_with("numerics/") ? CheckOutcome::kSkipped : CheckOutcome::kPassed;
    EXPECT_EQ(result.outcome, expected) << check_result_text(result);
  }
  if (kSanitized) return;
  EXPECT_TEXT(check_summary_text("plain.so", results), "plain.so conforms: 27 passed, 3 not applicable\n");
}

TEST_F(PluginCheck, FindsEachFault) {
  EXPECT_TEXT(failure("bad/exports.so", "static/exports"), "faulty_counter");
  EXPECT_TEXT(failure("bad/other_member.so", "load/entry"), "its manifest says ops/faulty");
  EXPECT_TEXT(failure("failing/failing.so", "load/options"), "has the default \"many\"");
  EXPECT_TEXT(failure("bad/opens.so", "load/side-effects"), "loading it opened files");
  EXPECT_TEXT(failure("bad/thread.so", "load/side-effects"), "loading it started threads");
  EXPECT_TEXT(failure("bad/any_id.so", "load/unknown-id"), "creates ops/faultyx");
  EXPECT_TEXT(failure("bad/entry_throws.so", "load/entry"), "threw an exception out of its entry");
}

// Runs checks while the fixture has the side effect; only `trace` may fail. Returns its message.
std::string after(const std::string& what, const CheckRequest& request, const std::string& trace) {
  ::setenv("SIDE_EFFECT", what.c_str(), 1);
  const auto results = run_checks(request);
  ::unsetenv("SIDE_EFFECT");
  std::string text;
  for (const CheckResult& result : results) {
    const bool found = result.test == trace;
    EXPECT_EQ(result.outcome, found ? CheckOutcome::kFailed : CheckOutcome::kPassed) << what << "\n"
                                                                                     << check_result_text(result);
    if (found) text = result.text;
  }
  return text;
}

TEST_F(PluginCheck, CountsATestAsPassedOnlyIfItReachedItsEnd) {
  const CheckRequest cycle = request("bad/side_effects.so", {"life/cycle"});
  EXPECT_TEXT(after("exit", cycle, "life/cycle"), "ended the process with exit code 0 before the test was over");
  EXPECT_TEXT(after("close", cycle, "life/cycle"), "ended the process with exit code 1 before the test was over");
  EXPECT_TEXT(after("exit late", cycle, "life/cycle"), "ended with exit code 5 after the test, expected 0");
}

TEST_F(PluginCheck, FindsOutputAndTracesOfAMember) {
  const CheckRequest cycle = request("bad/side_effects.so", {"life/cycle"});
  EXPECT_TEXT(after("stdout", cycle, "process/output"),
              "in life/cycle: it wrote to stdout, which belongs to the program: \"hello");
  EXPECT_TEXT(after("stderr", cycle, "process/output"), "it wrote to stderr");
  EXPECT_TEXT(after("file", cycle, "process/files"), "it left files behind: notes.txt");
  EXPECT_TEXT(after("temporary", cycle, "process/files"), "it left files behind: side_effects.tmp");
  EXPECT_TEXT(after("descriptor", cycle, "process/descriptors"), "stays open: /dev/null");
  EXPECT_TEXT(after("thread", cycle, "process/threads"), "is still running");
  EXPECT_TEXT(after("child", cycle, "process/children"), "it left a process running");
  if (kSanitized) return;
  EXPECT_TEXT(after("leak", request("bad/side_effects.so", {"life/thousand"}), "life/thousand"), "of malloc in use");
}

TEST_F(PluginCheck, FindsChangesOfTheProcess) {
  const CheckRequest cycle = request("bad/side_effects.so", {"life/cycle"});
  const auto state = [&](const std::string& what) { return after(what, cycle, "process/state"); };
  EXPECT_TEXT(state("environment"), "the environment variable OMP_NUM_THREADS was unset, is '1'");
  EXPECT_TEXT(state("folder"), "the working folder was ");
  EXPECT_TEXT(state("signal"), "the handler of signal SIGTERM was the default, is a function");
  EXPECT_TEXT(state("blocked"), "the set of blocked signals was no signals, is signals 2");
  EXPECT_TEXT(state("umask"), "is 0000");
  EXPECT_TEXT(state("locale"), "the locale was C, is ");
  EXPECT_TEXT(state("rounding"), "the rounding of floating-point numbers was mode 0");
#if defined(__x86_64__)
  EXPECT_TEXT(state("denormals"), "the flush of denormals to zero was off, is on");
#endif
  EXPECT_TEXT(state("limit"), "the limit RLIMIT_CORE was ");
}

TEST_F(PluginCheck, ReportsTheSameCauseOnce) {
  ::setenv("SIDE_EFFECT", "refuse", 1);
  const auto results = run_checks(request("bad/side_effects.so", {}));
  ::unsetenv("SIDE_EFFECT");
  std::map<CheckOutcome, int> counts;
  for (const CheckResult& result : results) {
    ++counts[result.outcome];
    if (result.outcome == CheckOutcome::kFailed) {
      EXPECT_EQ(result.test, "life/cycle");
      EXPECT_TEXT(result.text, "refused by the fixture");
    }
    const std::string text = check_result_text(result);
    if (result.test == "life/thousand") {
      EXPECT_EQ(text, "not run  life/thousand: life/cycle failed\n");
    } else if (result.test == "options/defaults") {
      EXPECT_EQ(text, "same     options/defaults: as life/cycle\n");
    }
  }
  EXPECT_EQ(counts[CheckOutcome::kFailed], 1);
  EXPECT_TEXT(check_summary_text("side_effects.so", results), "side_effects.so does not conform: ");
}

TEST_F(PluginCheck, ReportsATraceOfManyTestsOnce) {
  ::setenv("SIDE_EFFECT", "stdout", 1);
  const auto results = run_checks(request("bad/side_effects.so", {"life"}));
  ::unsetenv("SIDE_EFFECT");
  EXPECT_EQ(
      std::count_if(results.begin(), results.end(), [](const auto& r) { return r.outcome == CheckOutcome::kFailed; }),
      1);
  EXPECT_TEXT(results.back().text, "in life/cycle and 4 other tests: it wrote to stdout");
}

TEST_F(PluginCheck, RefusesAFileThatIsNotAPluginBeforeTheFirstTest) {
  const Thrown missing = thrown_by([] { run_checks(request("bad/not_there.so", {})); });
  EXPECT_TEXT(missing.text, "there is no file ");
  EXPECT_EQ(missing.code, ExitCode::kConfig);
  EXPECT_TEXT(thrown_by([] { run_checks(request("bad", {})); }).text, "is not a file");
  const Thrown foreign = thrown_by([] { run_checks(request("../CTestTestfile.cmake", {})); });
  EXPECT_TEXT(foreign.text, "is not a shared library");
  EXPECT_EQ(foreign.code, ExitCode::kPlugin);
  EXPECT_TEXT(thrown_by([] { run_checks(request("bad/no_note.so", {})); }).text, "has no manifest note");
}

TEST_F(PluginCheck, HasATimeLimitForAllTests) {
  CheckRequest hanging = request("bad/hangs.so", {"life"});
  hanging.total_timeout = std::chrono::milliseconds(300);
  const auto results = run_checks(hanging);
  const std::string words = "did not end within ", text = results.front().text;
  EXPECT_TEXT(text, words);
  EXPECT_LE(std::atoi(text.substr(text.find(words) + words.size()).c_str()), 300) << text;
  CheckRequest late = request("good/plain.so", {"static"});
  late.total_timeout = std::chrono::milliseconds(0);
  for (const CheckResult& result : run_checks(late))
    EXPECT_TEXT(check_result_text(result), "the time limit of 0 ms for all tests is over");
  EXPECT_FALSE(conforms(run_checks(late)));
}

TEST_F(PluginCheck, PrintsResultsAsJson) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(check_plugin(request("bad/exports.so", {"static"}), true), 3);
  const Json json = Json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(json.at("conforms"), false);
  EXPECT_EQ(json.at("failed"), 1);
  EXPECT_EQ(json.at("passed"), 3);
  EXPECT_EQ(json.at("tests").at(1).at("test"), "static/exports");
  EXPECT_EQ(json.at("tests").at(1).at("outcome"), "failed");
}

TEST_F(PluginCheck, SurvivesCrashesAndHangs) {
  if (!kSanitized) {
    EXPECT_TEXT(failure("bad/needs_log.so", "negotiation/optional-services"), "crashed with signal 11");
    EXPECT_TEXT(failure("bad/reads_tail.so", "negotiation/poison"), "crashed with signal");
  }
  const std::string hang = failure("bad/hangs.so", "life/cycle");
  EXPECT_TEXT(hang, kSanitized ? "did not end within 10000 ms" : "did not end within 4000 ms");
  EXPECT_TEXT(hang, "the call in progress: plugin 'faulty' 0.1.0 in prepare");
}

TEST_F(PluginCheck, FindsALeak) {
  if (!kSanitized) {
    EXPECT_TEXT(failure("bad/leaks.so", "life/thousand"), "1000 life cycles left 6");
  }
}

TEST_F(PluginCheck, RunsGroupsAndRefusesUnknownNames) {
  const auto results = run_checks(request("good/plain.so", {"options", "static/tier"}));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].test, "static/tier");
  EXPECT_TEXT(thrown_by([] { run_checks(request("good/plain.so", {"tests"})); }).text, "there is no check 'tests'");
}

TEST_F(PluginCheck, RunsAllTestsToFindTraces) {
  const auto results = run_checks(request("good/plain.so", {"process"}));
  EXPECT_EQ(results.size(), std::size(kTraceTests));
  for (const CheckResult& result : results) {
    EXPECT_TRUE(result.test.starts_with("process/")) << result.test;
    if (!kSanitized) {
      EXPECT_EQ(result.outcome, CheckOutcome::kPassed) << result.text;
    }
  }
}

TEST_F(PluginCheck, FindsAMemberOfAnUnknownKind) {
  CheckRequest one = request("good/plain.so", {"static/manifest"});
  one.path = patched_plain(scratch_, "member=model/needy", "member=video/needy");
  EXPECT_TEXT(run_checks(one).front().text, "video/needy cannot be used: this host does not use kind 'video'");
}

TEST_F(PluginCheck, FindsAnUnknownManifestKeyAndAMemberThatReadsNoFiles) {
  EXPECT_TEXT(failure("bad/unknown_key.so", "static/manifest"),
              "its manifest has the unknown key 'filee' (did you mean 'file'?); the keys are id, ");
  CheckRequest one = request("good/plain.so", {"static/manifest"});
  one.path = patched_plain(scratch_, "member=model/needy", "member=rows/needyy");
  EXPECT_TEXT(run_checks(one).front().text,
              "rows/needyy can never be used: its manifest names no files; add a line such as file=*.parquet");
}

TEST_F(PluginCheck, APluginMayTrustThatAServiceThatItRequiresIsThere) {
  for (const CheckResult& result : run_checks(request("bad/requires_log.so", {"negotiation"})))
    EXPECT_EQ(result.outcome, CheckOutcome::kPassed) << check_result_text(result);
}

TEST_F(PluginCheck, APluginWhoseResultsWereNotComparedIsNotKnownToConform) {
  FakeServices services;
  CheckHooks hooks;
  hooks.numerics = [](const CheckedMember&) { return std::string("it claims nothing"); };
  const CheckVerdict verdict = examine_in_process(fixture("good/plain.so"), "numerics/reference", services, hooks);
  EXPECT_EQ(verdict.outcome, CheckOutcome::kUntested);
  EXPECT_TEXT(verdict.text, "it claims nothing");
  const std::vector<CheckResult> results = {{"load/entry", CheckOutcome::kPassed, ""},
                                            {"numerics/reference", verdict.outcome, verdict.text}};
  EXPECT_FALSE(conforms(results));
  EXPECT_TEXT(check_summary_text("x.so", results),
              "x.so is not known to conform: 1 passed, 1 not compared with anything\n");
}

TEST_F(PluginCheck, PrintsCounts) {
  testing::internal::CaptureStdout();
  const int code = check_plugin(request("bad/exports.so", {"static"}));
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 3);
  EXPECT_TEXT(text, "FAILED   static/exports (");
  EXPECT_TEXT(text, "         exports [");
  EXPECT_TEXT(text, "exports.so does not conform: 3 passed, 1 failed\n");
}

TEST_F(PluginCheck, CallsTheHooks) {
  FakeServices services;
  CheckHooks hooks;
  int num_asked = 0;
  hooks.sample_options = [](const MemberName& member, const std::vector<OptionSpec>&) {
    return member.id == "needy" ? Json{{"folder", "/p"}} : Json();
  };
  hooks.numerics = [&](const CheckedMember& member) {
    ++num_asked;
    if (member.instance.id() == "needy") throw plugin_error("off by 0.5, at most 0.1 is allowed");
    return std::string();
  };
  const CheckVerdict verdict = examine_in_process(fixture("good/plain.so"), "numerics/reference", services, hooks);
  EXPECT_TEXT(verdict.text, "off by 0.5");
  EXPECT_EQ(verdict.outcome, CheckOutcome::kFailed);
  EXPECT_EQ(num_asked, 2);
}

TEST_F(PluginCheck, FindsAServiceThatThePluginNeedsButDoesNotRequire) {
  FakeServices services;
  const std::string words =
      "it does not work without chassis.log/1, which its manifest does not require; add the line requires="
      "chassis.log/1 to the manifest, or do without the service: ";
  const CheckVerdict created =
      examine_in_process(fixture("bad/wants_log.so"), "negotiation/optional-services", services);
  EXPECT_EQ(created.outcome, CheckOutcome::kFailed);
  EXPECT_TEXT(created.text, words + "ops/faulty: plugin 'faulty' 0.1.0");
  EXPECT_TEXT(created.text, ": there is no log");
  EXPECT_EQ(examine_in_process(fixture("bad/asks_log.so"), "negotiation/optional-services", services).outcome,
            CheckOutcome::kPassed);
  // The members are tested again without the log.
  int num_asked = 0;
  CheckHooks hooks;
  hooks.numerics = [&](const CheckedMember&) {
    if (++num_asked == 2) throw plugin_error("there is no log in forward");
    return std::string();
  };
  const CheckVerdict computes = examine_in_process(fixture("bad/asks_log.so"), "numerics/reference", services, hooks);
  EXPECT_EQ(computes.outcome, CheckOutcome::kFailed);
  EXPECT_TEXT(computes.text, words + "there is no log in forward");
}

TEST_F(PluginCheck, CallsTheHooksForProcessFactsAndGuards) {
  FakeServices services;
  CheckHooks hooks;
  int num_threads = 4;
  hooks.process_facts = [&] {
    return std::vector<std::pair<std::string, std::string>>{{"the number of threads", std::to_string(num_threads)}};
  };
  hooks.numerics = [&](const CheckedMember&) {
    num_threads = 1;
    return std::string();
  };
  std::vector<bool> behind;
  hooks.guard_buffers = [&](bool is_behind) {
    behind.push_back(is_behind);
    return [] { return std::vector<std::string>{"wrote 4 bytes past the end of a buffer of 12 bytes"}; };
  };
  const CheckVerdict plain = examine_in_process(fixture("good/plain.so"), "numerics/reference", services, hooks);
  EXPECT_EQ(plain.outcome, CheckOutcome::kPassed) << plain.text;
  ASSERT_EQ(plain.traces.size(), 1u);
  EXPECT_EQ(plain.traces[0].first, "process/state");
  EXPECT_EQ(plain.traces[0].second, "the number of threads was 4, is 1");
  for (const char* test : {"numerics/guard-after", "numerics/guard-before"}) {
    const CheckVerdict guarded = examine_in_process(fixture("good/plain.so"), test, services, hooks);
    EXPECT_EQ(guarded.outcome, CheckOutcome::kFailed);
    EXPECT_TEXT(guarded.text, "wrote 4 bytes past the end of a buffer of 12 bytes");
  }
  EXPECT_EQ(behind, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace chassis
