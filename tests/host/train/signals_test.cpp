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

TEST(RunSignals, RemembersWhichOneCame) {
  const std::pair<int, const char*> all[] = {{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}};
  for (const auto& [number, name] : all) {
    RunSignals signals;
    EXPECT_FALSE(signals.stop_requested());
    raise(number);
    EXPECT_TRUE(signals.stop_requested());
    EXPECT_STREQ(signals.name(), name);
  }
}

TEST(RunSignals, PutsBackWhatWasThereBefore) {
  { RunSignals signals; }
  struct sigaction action {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(RunSignals, AHangupThatNohupHasSwitchedOffStaysOff) {
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

TEST(RunSignals, TheFirstInterruptSaysWhichPluginIsWaitedFor) {
  testing::internal::CaptureStderr();
  {
    RunSignals signals;
    const PluginCall call(call_site("provider 'slow'", "layers.q_proj"), "forward", 3);
    raise(SIGINT);
    raise(SIGTERM);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_HAS(said, "SIGINT: stopping after the step in progress; waiting for provider 'slow' in forward of layers.q_proj "
                   "(unit 3); Ctrl-C again ends at once");
  EXPECT_EQ(said.find("SIGTERM"), std::string::npos) << "it is told once";
}

}  // namespace
}  // namespace chassis
