// The number of threads of a rank.
#include "host/session/target.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "host/base/log.hpp"
#include "host/config/config.hpp"
#include "host/service/threads.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

// Sets OMP_NUM_THREADS, and afterwards restores it and the number of threads.
class RankThreads : public testing::Test {
 protected:
  ~RankThreads() override {
    if (before_.empty())
      unsetenv("OMP_NUM_THREADS");
    else
      setenv("OMP_NUM_THREADS", before_.c_str(), 1);
    set_threads(threads_);
    log::reset_counted_warnings();
  }
  // The log of a rank that is alone.
  std::string choose(const char* variable, const std::string& threads = "0") {
    const Config config = load_config_text("schema_version = 1\n", "a.toml", {"run.threads=" + threads});
    setenv("OMP_NUM_THREADS", variable, 1);
    log::reset_counted_warnings();
    testing::internal::CaptureStderr();
    set_rank_threads(config.settings().run, world_);
    log::flush();
    return testing::internal::GetCapturedStderr();
  }
  const World world_;

 private:
  const std::string before_ = omp_num_threads();
  const int threads_ = num_threads();
};

TEST_F(RankThreads, AreThoseOfOmpNumThreads) {
  EXPECT_EQ(choose("3"), "");
  EXPECT_EQ(num_threads(), 3);
  EXPECT_EQ(choose(" 5 , 2"), "");
  EXPECT_EQ(num_threads(), 5);
  EXPECT_EQ(choose("abc", "2"), "") << "run.threads is set";
  EXPECT_EQ(num_threads(), 2);
}

TEST_F(RankThreads, ThatOmpNumThreadsDoesNotSayAreTheCoresWithAWarning) {
  for (const char* invalid : {"abc", "0", "-3", "99999999999", "2x", "1.5", "2,", ",", " "}) {
    EXPECT_HAS(choose(invalid), "warning: OMP_NUM_THREADS=" + std::string(invalid) +
                                    " is not a number of threads, 1 to 4096: one for each of " +
                                    std::to_string(world_.num_cores()) + " cores is used instead");
    EXPECT_EQ(num_threads(), world_.num_cores()) << invalid;
  }
}

TEST_F(RankThreads, AreBoundedByTheCoresWithAWarning) {
  if (max_rank_threads() >= 4096) GTEST_SKIP() << "more threads cannot be asked for";
  EXPECT_HAS(choose("1", "4096"), "warning: run.threads = 4096, and this machine has ");
  EXPECT_EQ(num_threads(), max_rank_threads());
  EXPECT_EQ(choose("1", "64"), "");
  EXPECT_EQ(num_threads(), 64);
}

}  // namespace
}  // namespace chassis
