#include "host/plugin/check.hpp"

#include <gtest/gtest.h>

#include "tests/host/plugin/fake_services.hpp"
#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {
namespace {

// Sanitizers slow down and bring threads and exports of their own.
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
    return {fixture(file), CHASSIS_TEST_BINARY_DIR "/tests/host/plugin/plugin_check_program", only};
  }
  // The one result of a test that fails.
  static std::string failure(const std::string& file, const std::string& test) {
    CheckRequest one = request(file, {test});
    one.timeout = std::chrono::seconds(test == "life/cycle" ? 1 : 45);
    const auto results = run_checks(one);
    EXPECT_EQ(results.size(), 1u);
    EXPECT_EQ(results.front().outcome, CheckOutcome::kFailed) << results.front().text;
    return results.front().text;
  }

  ScratchFolder scratch_;
};

TEST_F(PluginCheck, PassesAPluginWithoutFault) {
  for (const CheckResult& result : run_checks(request("good/plain.so", {}))) {
    if (kSanitized && (result.test == "static/exports" || result.test == "life/thousand")) continue;
    const CheckOutcome expected = result.test == "numerics/reference" ? CheckOutcome::kSkipped : CheckOutcome::kPassed;
    EXPECT_EQ(result.outcome, expected) << check_result_text(result);
  }
}

TEST_F(PluginCheck, FindsEachFault) {
  EXPECT_TEXT(failure("bad/no_note.so", "static/manifest"), "has no manifest note");
  EXPECT_TEXT(failure("bad/exports.so", "static/exports"), "careless_counter");
  EXPECT_TEXT(failure("bad/other_member.so", "load/entry"), "its manifest says ops/careless");
  EXPECT_TEXT(failure("moody/moody.so", "load/options"), "has the default \"many\"");
  EXPECT_TEXT(failure("bad/opens.so", "load/side-effects"), "loading it opened files");
  EXPECT_TEXT(failure("bad/thread.so", "load/side-effects"), "loading it started threads");
  EXPECT_TEXT(failure("bad/any_id.so", "load/unknown-id"), "creates ops/carelessx");
  EXPECT_TEXT(failure("bad/entry_throws.so", "load/entry"), "threw an exception out of its entry");
}

TEST_F(PluginCheck, SurvivesCrashesAndHangs) {
  if (!kSanitized) {
    EXPECT_TEXT(failure("bad/needs_log.so", "negotiation/optional-services"), "crashed with signal 11");
    EXPECT_TEXT(failure("bad/reads_tail.so", "negotiation/poison"), "crashed with signal");
  }
  EXPECT_TEXT(failure("bad/hangs.so", "life/cycle"), "did not end within 1000 ms");
}

TEST_F(PluginCheck, FindsALeak) {
  if (!kSanitized) {
    EXPECT_TEXT(failure("bad/leaks.so", "life/thousand"), "1000 lives took");
  }
}

TEST_F(PluginCheck, RunsGroupsAndRefusesUnknownNames) {
  const auto results = run_checks(request("good/plain.so", {"options", "static/tier"}));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].test, "static/tier");
  EXPECT_TEXT(thrown_by([] { run_checks(request("good/plain.so", {"tests"})); }).text, "there is no check 'tests'");
}

TEST_F(PluginCheck, SaysWhatItCounted) {
  testing::internal::CaptureStdout();
  const int code = check_plugin(request("bad/exports.so", {"static"}));
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 3);
  EXPECT_TEXT(text, "FAILED   static/exports (");
  EXPECT_TEXT(text, "         exports [");
  EXPECT_TEXT(text, ": 3 passed, 1 failed, 0 skipped\n");
}

TEST_F(PluginCheck, AsksTheHooks) {
  FakeServices services;
  CheckHooks hooks;
  int num_asked = 0;
  hooks.sample_options = [](const MemberName& member, const std::vector<OptionSpec>&) {
    return member.id == "needy" ? Json{{"path", "/p"}} : Json();
  };
  hooks.numerics = [&](Instance& instance) {
    ++num_asked;
    if (instance.id() == "needy") throw plugin_error("off by 0.5, at most 0.1 is allowed");
    return true;
  };
  testing::internal::CaptureStdout();
  const int code = run_check_in_process(fixture("good/plain.so"), "numerics/reference", services, hooks);
  EXPECT_TEXT(testing::internal::GetCapturedStdout(), "off by 0.5");
  EXPECT_EQ(code, 1);
  EXPECT_EQ(num_asked, 2);
}

}  // namespace
}  // namespace chassis
