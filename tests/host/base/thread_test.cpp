// Threads of the host: their signals, their names, and how those that fail end.
#include "host/base/thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

namespace chassis {
namespace {

TEST(Thread, LeavesSignalsToTheMainThreadButNotItsOwnFaults) {
  sigset_t blocked;
  Thread("test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); }).join();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) EXPECT_EQ(sigismember(&blocked, number), 1) << number;
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
    EXPECT_EQ(sigismember(&blocked, number), 0) << number;
}

// A failure of the thread ends the process, but first a thread that waits for it is told.
TEST(Thread, EndsTheProcessWithTheCodeOfAnExceptionThatLeavesIt) {
  const auto fail = [](const std::function<void()>& body) {
    const ThreadFailures failures([](const Error& error) { std::fprintf(stderr, "told: %s\n", error.what()); });
    Thread("data reader", body).join();
  };
  EXPECT_EXIT(fail([] { throw std::bad_alloc(); }), testing::ExitedWithCode(4),
              "error: out of host memory \\(thread: data reader\\)\ntold: out of host memory");
  EXPECT_EXIT(fail([] { throw storage_error("no such file"); }), testing::ExitedWithCode(7), "no such file");
  EXPECT_EXIT(fail([] { throw 5; }), testing::ExitedWithCode(1), "unknown type \\(thread: data reader\\)");
}

// Leaves the process no memory beyond what it holds, and no stack of an ended thread to reuse.
void take_all_memory() {
  static std::vector<std::thread> held;  // the process ends with them
  held.reserve(1024);
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{static_cast<rlim_t>(pages) * 4096, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
  try {
    for (;;) held.emplace_back([] { pause(); });
  } catch (const std::exception&) {
  }
}

int start_without_memory(const std::function<void()>& start) {
  take_all_memory();
  try {
    start();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Thread, IsOutOfMemoryByItsNameIfItCannotStart) {
  EXPECT_EXIT(_exit(start_without_memory([] { Thread("watchdog", [] {}).join(); })), testing::ExitedWithCode(4),
              "thread that cannot start: watchdog");
  EXPECT_EXIT(_exit(start_without_memory([] { run_async(std::launch::async, "save", [] {}).get(); })),
              testing::ExitedWithCode(4), "thread that cannot start: save");
}
#endif

TEST(Thread, GivesResultsAndExceptionsOfAsynchronousWorkToItsFuture) {
  char name[16] = {};
  const auto work = [&] { return pthread_getname_np(pthread_self(), name, sizeof name), 5; };
  EXPECT_EQ(run_async(std::launch::async, "data prefetch of rows", work).get(), 5);
  EXPECT_STREQ(name, "data prefetch o");
  EXPECT_THROW(run_async(std::launch::async, "save", [] { throw storage_error("full"); }).get(), Error);
  EXPECT_THROW(run_async(std::launch::deferred, "save", [] { throw storage_error("full"); }).get(), Error);
}

}  // namespace
}  // namespace chassis
