// Records of plugin calls, the watch, and the reports of exits and crashes.
#include "host/plugin/call.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "host/base/end_process.hpp"
#include "host/plugin/crash_report.hpp"

namespace chassis {
namespace {

TEST(PluginCall, NamesPluginNodePhaseUnitAndStep) {
  EXPECT_EQ(call_in_progress(), "");
  {
    const PluginCall call(call_site("provider 'sdpa'", "layers.attention"), "forward", 3);
    EXPECT_EQ(call_in_progress(), "provider 'sdpa' in forward of layers.attention (unit 3)");
    set_current_step(17);
    EXPECT_EQ(call_in_progress(), "provider 'sdpa' in forward of layers.attention (unit 3), step 17");
    set_current_step(0);
  }
  EXPECT_EQ(call_in_progress(), "");
}

TEST(PluginCall, RestoresTheOuterCall) {
  const PluginCall outer(call_site("plugin 'zero' 0.1.0"), "bind");
  {
    const PluginCall inner(call_site("plugin 'gloo' 0.1.0"), "start");
    EXPECT_EQ(call_in_progress(), "plugin 'gloo' 0.1.0 in start");
  }
  EXPECT_EQ(call_in_progress(), "plugin 'zero' 0.1.0 in bind");
}

TEST(PluginCall, IsVisibleToAnotherThread) {
  const PluginCall call(call_site("plugin 'adamw' 0.1.0"), "step");
  EXPECT_EQ(std::async(std::launch::async, call_in_progress).get(), "plugin 'adamw' 0.1.0 in step");
}

TEST(PluginCall, FitsIntoAnyBuffer) {
  const PluginCall call(call_site("plugin 'adamw' 0.1.0"), "step");
  char small[8];
  EXPECT_EQ(describe_call(small, sizeof small), 7u);
  EXPECT_STREQ(small, "plugin ");
  EXPECT_EQ(describe_call(nullptr, 0), 0u);
}

TEST(CallWatch, ReportsACallThatDoesNotReturn) {
  std::promise<std::string> reported;
  std::once_flag once;
  const CallWatch watch(std::chrono::milliseconds(20),
                        [&](const std::string& text) { std::call_once(once, [&] { reported.set_value(text); }); });
  const PluginCall call(call_site("provider 'slow'", "layers.q_proj"), "backward_inputs", 1);
  EXPECT_TRUE(reported.get_future().get().starts_with(
      "provider 'slow' in backward_inputs of layers.q_proj (unit 1) has not returned for "));
}

TEST(CallWatch, DoesNotReportManyShortCalls) {
  int num_reports = 0;
  {
    const CallWatch watch(std::chrono::hours(1), [&](const std::string&) { ++num_reports; });
    for (int i = 0; i < 1000; ++i) const PluginCall call(call_site("plugin 'adamw' 0.1.0"), "step");
  }
  EXPECT_EQ(num_reports, 0);
}

TEST(SharedCalls, TellInWhichCallAProcessHasEnded) {
  const SharedCalls calls(2);
  for (const int index : {0, 1}) {
    const pid_t process = ::fork();
    if (process == 0) {
      calls.record_here(index);
      if (index == 1) {
        set_run_is_over();
        end_process(0);
      }
      { const PluginCall over(call_site("plugin 'adamw' 0.1.0"), "states"); }
      set_current_step(4);
      const PluginCall call(call_site("plugin 'leaving' 0.1.0", "layers.q_proj"), "step", 2);
      end_process(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(process, &status, 0), process);
  }
  EXPECT_FALSE(calls.is_over(0));
  EXPECT_EQ(calls.last_call(0), "plugin 'leaving' 0.1.0 in step of layers.q_proj (unit 2), step 4");
  EXPECT_TRUE(calls.is_over(1));
  EXPECT_EQ(calls.last_call(1), "");
}

TEST(OwnCalls, FollowTheThreadThatMadeThem) {
  OwnCalls calls;
  EXPECT_EQ(calls.running().text, "");
  const PluginCall call(call_site("plugin 'adamw' 0.1.0"), "step");
  EXPECT_EQ(std::async(std::launch::async, [&] { return calls.running().text; }).get(), "plugin 'adamw' 0.1.0 in step");
  const PluginCall other(call_site("plugin 'gloo' 0.1.0"), "wait");
  EXPECT_EQ(calls.running().since.count(), 0);
}

// The process ends with exit code `code` and prints `text`.
#define EXPECT_ENDS(statement, code, text) EXPECT_EXIT(statement, testing::ExitedWithCode(code), text)

TEST(ExitGuard, AnExitInsideAPluginIsAPluginError) {
  const auto in_plugin = [](void (*end)()) {
    const ExitGuard guard;
    const PluginCall call(call_site("provider 'quits'", "layers.q_proj"), "forward", 2);
    end();
  };
  EXPECT_ENDS(in_plugin([] { std::exit(0); }), 3,
              "error: the process was ended by exit\\(0\\) inside provider 'quits' in forward of layers.q_proj "
              "\\(unit 2\\)");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers define _exit themselves
  EXPECT_ENDS(in_plugin([] { ::_exit(0); }), 3, "ended by _exit\\(0\\) inside provider 'quits'");
#endif
  EXPECT_ENDS(in_plugin([] { std::quick_exit(0); }), 3, "ended by quick_exit\\(\\) inside provider 'quits'");
}

// exit() destroys thread-local objects before it runs handlers.
TEST(ExitGuard, AnExitInAnotherThreadNamesTheCallOfThatThread) {
  const auto in_thread = [] {
    const ExitGuard guard;
    const PluginCall call(call_site("provider 'computes'", "layers.q_proj"), "forward", 2);
    std::thread([] {
      const PluginCall own(call_site("sink 'quits'"), "scalars");
      std::exit(0);
    }).join();
  };
  EXPECT_ENDS(in_thread(), 3, "ended by exit\\(0\\) inside sink 'quits' in scalars");
}

TEST(ExitGuard, AnExitOutsideAllCallsIsAPluginError) {
  EXPECT_ENDS(
      {
        const ExitGuard guard;
        std::exit(0);
      },
      3, "ended by exit\\(0\\) while no plugin was called: by a library, or a thread that a plugin started");
}

TEST(ExitGuard, AnExitWithoutGuardIsNotAnError) {
  EXPECT_ENDS(
      {
        { const ExitGuard guard; }
        std::exit(5);
      },
      5, "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CrashReport, PrintsCallStepAndStack) {
  EXPECT_DEATH(
      {
        report_crashes();
        set_current_step(9);
        const PluginCall call(call_site("plugin 'adamw' 0.1.0"), "step");
        std::raise(SIGSEGV);
      },
      "error: SIGSEGV\n  call in progress: plugin 'adamw' 0.1.0 in step, step 9\n  outside the code of all plugins\n"
      "  stack, innermost first:.*call");
}
#endif

}  // namespace
}  // namespace chassis
