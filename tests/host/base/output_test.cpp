#include "host/base/output.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <iostream>
#include <mutex>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

TEST(StrayOutput, KeepsForeignLinesOutOfStandardOutputAndCountsThem) {
  log::reset_counted_warnings();
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    const StrayOutput stray([] { return std::string("plugin 'noisy' 0.1.0 in step"); });
    std::fprintf(output(), "{\"json\": ");
    std::printf("a line by C\n");
    std::cout << "a line by C++" << std::endl;
    const char* text = "a line by its number\nan unfinished";
    ASSERT_EQ(::write(STDOUT_FILENO, text, std::strlen(text)), static_cast<ssize_t>(std::strlen(text)));
    std::fprintf(output(), "1}\n");
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "{\"json\": 1}\n");
  const std::string console = testing::internal::GetCapturedStderr();
  for (const char* line :
       {"stdout of plugin 'noisy' 0.1.0 in step: a line by C\n", "of plugin 'noisy' 0.1.0 in step: a line by C++\n",
        "stdout (while plugin 'noisy' 0.1.0 in step was in progress): a line by its number\n", "): an unfinished\n"})
    EXPECT_NE(console.find(line), std::string::npos) << line << " is not in\n" << console;
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].second, 4u);
  log::reset_counted_warnings();
}

// A line may be read after another call has begun.
TEST(StrayOutput, NamesTheCallThatWroteALineOfAStream) {
  testing::internal::CaptureStderr();
  {
    std::string call = "plugin 'noisy' in step";
    std::mutex mutex;
    const StrayOutput stray([&] {
      const std::lock_guard lock(mutex);
      return call;
    });
    const auto next_call = [&](const char* text) {
      const std::lock_guard lock(mutex);
      call = text;
    };
    std::printf("begun ");
    next_call("plugin 'quiet' in wait");
    std::printf("and ended\n");
    std::printf("without an end");
    next_call("");
  }
  const std::string console = testing::internal::GetCapturedStderr();
  for (const char* line :
       {"stdout of plugin 'noisy' in step: begun and ended\n", "stdout of plugin 'quiet' in wait: without an end\n"})
    EXPECT_NE(console.find(line), std::string::npos) << line << " is not in\n" << console;
  log::reset_counted_warnings();
}

// A child that a plugin has forked keeps every descriptor open.
TEST(StrayOutput, DoesNotWaitForAChildThatLivesOn) {
  testing::internal::CaptureStderr();
  pid_t child = -1;
  {
    const StrayOutput stray([] { return std::string(); });
    std::printf("a line before the end\n");
    child = ::fork();
    if (child == 0) {
      ::alarm(60);
      ::pause();
      ::_exit(0);
    }
  }
  EXPECT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "the child has ended";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("a line before the end"), std::string::npos);
  log::reset_counted_warnings();
}

TEST(StrayOutput, RestoresStandardOutput) {
  testing::internal::CaptureStdout();
  { const StrayOutput stray([] { return std::string(); }); }
  std::printf("ours ");
  std::cout << "again" << std::endl;
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "ours again\n");
}

TEST(Output, IsAnErrorIfItCannotBeWritten) {
  testing::internal::CaptureStdout();
  const int full = ::open("/dev/full", O_WRONLY), before = ::dup(STDOUT_FILENO);
  ::dup2(full, STDOUT_FILENO);
  std::fprintf(output(), "lost");
  EXPECT_THROW(flush_output(), Error);
  ::dup2(before, STDOUT_FILENO);
  ::close(full), ::close(before);
  testing::internal::GetCapturedStdout();
}

// A program started by `command >&-` finds descriptor 1 like this.
TEST(Output, IsAnErrorIfItIsClosedAndPluginLinesAreStillShown) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int closed = ::open("/dev/null", O_RDONLY), before = ::dup(STDOUT_FILENO);
  ::dup2(closed, STDOUT_FILENO);
  {
    const StrayOutput stray([] { return std::string("plugin 'noisy'"); });
    ASSERT_EQ(::write(STDOUT_FILENO, "a line\n", 7), 7);
    flush_output();  // there is nothing to print
    std::fprintf(output(), "lost");
    EXPECT_THROW(flush_output(), Error);
    EXPECT_GE(output_descriptor(), 0);
  }
  EXPECT_LT(::write(STDOUT_FILENO, "x", 1), 0);
  ::dup2(before, STDOUT_FILENO);
  ::close(closed), ::close(before);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("stdout (while plugin 'noisy' was in progress): a line\n"),
            std::string::npos);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  log::reset_counted_warnings();
}

}  // namespace
}  // namespace chassis
