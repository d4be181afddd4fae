// Processes that die, stop or exit during a collective: the others end with the reason, and none hangs.
#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace {

using chassis::test::Outcome;
using chassis::test::ScratchDirectory;

Outcome run(const std::string& num_ranks, const std::string& what, const std::string& rank) {
  ScratchDirectory directory;
  return chassis::test::run_process(
      {CHASSIS_TEST_BINARY_DIR "/tests/host/service/comm_rank_program", "spawn", num_ranks, what, rank},
      directory.path());
}

TEST(Processes, SumTogether) {
  const Outcome outcome = run("3", "nothing", "0");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* rank : {"rank 0", "rank 1", "rank 2"}) EXPECT_HAS(outcome.output, std::string(rank) + " is done");
}

TEST(Processes, EndWhenOneOfThemIsKilled) {
  for (const char* rank : {"0", "1", "2", "1", "2"}) {
    const Outcome outcome = run("3", "kill", rank);
    EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
    EXPECT_HAS(outcome.output, std::string("rank ") + rank + " was killed by SIGKILL");
    EXPECT_EQ(outcome.output.find("SIGPIPE"), std::string::npos) << outcome.output;
  }
}

TEST(Processes, EndWhenOneOfThemExits) {
  const Outcome outcome = run("2", "exit", "1");
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  EXPECT_HAS(outcome.output, "rank 1 ended with exit code 0 before the run was over, outside all plugins");
}

TEST(Processes, EndWithTheErrorOfTheOneThatFailed) {
  const Outcome outcome = run("3", "fail", "2");
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_HAS(outcome.output, "out of device memory");
  EXPECT_EQ(outcome.output.find("went away"), std::string::npos) << outcome.output;
}

TEST(Processes, EndWhenOneOfThemIsStopped) {
  const Outcome outcome = run("2", "stop", "1");
  EXPECT_EQ(outcome.exit_code, 5) << outcome.output;
  // The threads of a process do not stop at the same instant: one more exchange may be done.
  EXPECT_HAS(outcome.output, "all_reduce of 200000 f32 'gradient' (#10");
  EXPECT_HAS(outcome.output, " of dp) was not done within 4 s: rank 1 did not respond");
}

}  // namespace
