#include "host/service/threads.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "host/base/control_groups.hpp"
#include "host/base/error.hpp"
#include "tests/support/one_core.hpp"

namespace chassis {
namespace {

// While it lives, no thread can start: each would get a stack larger than the address space.
class NoThreadStarts {
 public:
  NoThreadStarts() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    EXPECT_EQ(0, pthread_attr_setstacksize(&attributes, size_t{1} << 50));
    EXPECT_EQ(0, pthread_setattr_default_np(&attributes));
    pthread_attr_destroy(&attributes);
  }
  ~NoThreadStarts() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

class ThreadsTest : public testing::Test {
 protected:
  void TearDown() override { set_threads(before_); }
  const int before_ = num_threads();
};

TEST_F(ThreadsTest, AllStart) {
  set_threads(3);
  EXPECT_NO_THROW(check_threads_start());
}

TEST_F(ThreadsTest, OneThreadNeedsNoStart) {
  set_threads(1);
  const NoThreadStarts limit;
  EXPECT_NO_THROW(check_threads_start());
}

// OpenMP ends the process with exit code 1 in this case.
TEST_F(ThreadsTest, ThreadsThatCannotStartAreALackOfMemoryWithBothNumbers) {
  set_threads(3);
  const NoThreadStarts limit;
  try {
    check_threads_start();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(ExitCode::kOutOfMemory, error.code());
    EXPECT_NE(std::string::npos,
              std::string(error.what()).find("threads for the computation: 3, of which 1 could start"))
        << error.what();
    EXPECT_NE(std::string::npos, error.hint_text().find("run.threads"));
  }
}

// On a machine with one core the first two lines cannot fail.
TEST_F(ThreadsTest, ByDefaultAreThoseOfTheVariableOrOneForEachUsableCore) {
  const std::string before = omp_num_threads();
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(default_num_threads(1), usable_threads());
  EXPECT_EQ(default_num_threads(2), std::max(1, usable_threads() / 2));
  {
    const test::OneCore one_core;
    EXPECT_EQ(default_num_threads(1), 1) << "LibTorch has chosen " << num_threads() << " before";
  }
  EXPECT_EQ(default_num_threads(100'000), 1);
  setenv("OMP_NUM_THREADS", "5,2", 1);
  EXPECT_EQ(default_num_threads(3), 5);
  if (before.empty())
    unsetenv("OMP_NUM_THREADS");
  else
    setenv("OMP_NUM_THREADS", before.c_str(), 1);
}

}  // namespace
}  // namespace chassis
