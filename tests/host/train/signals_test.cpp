#include "host/train/signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace chassis {
namespace {

TEST(StopSignals, RemembersWhichOneCame) {
  for (int number : {SIGINT, SIGTERM}) {
    StopSignals signals;
    EXPECT_FALSE(signals.requested());
    raise(number);
    EXPECT_TRUE(signals.requested());
    EXPECT_STREQ(signals.name(), number == SIGINT ? "SIGINT" : "SIGTERM");
  }
}

TEST(StopSignals, PutsBackWhatWasThereBefore) {
  { StopSignals signals; }
  struct sigaction action {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST(StopSignals, TheSecondInterruptEndsTheProcessAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    StopSignals signals;
    raise(SIGINT);
    raise(SIGINT);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

}  // namespace
}  // namespace chassis
