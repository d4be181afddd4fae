// Stop signals: what they set, print and restore.
#include "host/train/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "host/plugin/call.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

TEST(RunSignals, RemembersWhichSignalCame) {
  const std::pair<int, const char*> all[] = {
      {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGQUIT, "SIGQUIT"}};
  for (const auto& [number, name] : all) {
    RunSignals signals;
    EXPECT_FALSE(signals.stop_requested());
    raise(number);
    EXPECT_TRUE(signals.stop_requested());
    EXPECT_STREQ(signals.name(), name);
  }
}

TEST(RunSignals, RestoresThePreviousHandlers) {
  { RunSignals signals; }
  struct sigaction action {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(RunSignals, AHangupThatNohupIgnoresStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  {
    RunSignals signals;
    raise(SIGHUP);
    EXPECT_FALSE(signals.stop_requested());
  }
  signal(SIGHUP, SIG_DFL);
}

TEST(RunSignals, TheSecondInterruptEndsTheProcessAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    RunSignals signals;
    raise(SIGINT);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(RunSignals, TheFirstInterruptNamesTheLastStepAndTheSecondWhatIsSaved) {
  const auto interrupt = [](int64_t step, int64_t saved, int num_interrupts) {
    RunSignals signals;
    signals.note_saved(saved);
    set_current_step(step);
    const PluginCall call(call_site("provider 'slow'", "layers.q_proj"), "forward", 3);
    for (int i = 0; i < num_interrupts; ++i) raise(SIGINT);
    raise(SIGTERM);
    set_current_step(0);
  };
  testing::internal::CaptureStderr();
  interrupt(7, 0, 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "\nSIGINT: stopping after step 7, which is in progress, and saving it; Ctrl-C again ends at once\n");
  using testing::ExitedWithCode;
  EXPECT_EXIT(interrupt(0, 0, 2), ExitedWithCode(130),
              "stopping before the first step; Ctrl-C again ends at once\n\n"
              "SIGINT again: ended at once; nothing is saved\n");
  EXPECT_EXIT(interrupt(7, 5, 2), ExitedWithCode(130), "the checkpoint of step 5 is saved, later steps are not\n");
  EXPECT_EXIT(interrupt(7, 0, 2), ExitedWithCode(130), "no checkpoint is saved, the steps so far are lost\n");
}

TEST(RunSignals, AnInterruptAfterTheRequestsOfAStepNamesTheNextStep) {
  const auto said = [](int64_t asked, bool is_last) {
    testing::internal::CaptureStderr();
    RunSignals signals;
    set_current_step(4);
    signals.note_asked(asked, is_last);
    raise(SIGTERM);
    set_current_step(0);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_HAS(said(3, false), "SIGTERM: stopping after step 4, which is in progress, and saving it");
  EXPECT_HAS(said(4, false), "SIGTERM: stopping after step 5, which comes next, and saving it");
  EXPECT_HAS(said(4, true), "SIGTERM: stopping after step 4, the last one, and saving it");
}

}  // namespace
}  // namespace chassis
