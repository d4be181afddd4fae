// Signals of threads of the host.
#include "host/base/thread.hpp"

#include <gtest/gtest.h>
#include <signal.h>

namespace chassis {
namespace {

TEST(Thread, LeavesSignalsToTheMainThreadButNotItsOwnFaults) {
  sigset_t blocked;
  thread_without_signals([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).join();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) EXPECT_EQ(sigismember(&blocked, number), 1) << number;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
    EXPECT_EQ(sigismember(&blocked, number), 0) << number;
}

}  // namespace
}  // namespace chassis
