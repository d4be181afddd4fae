// How threads wait between parallel regions: awake for a moment where each has a core, asleep where they share cores,
// and as the user says. Read from the variables with which the running program was started last.
#include "host/base/control_groups.hpp"
#include "tests/support/program_run.hpp"

namespace chassis::test {
namespace {

class ThreadWait : public ProgramRun {
 protected:
  // One line for each variable of OpenMP and of the program that a run with these words and variables has, in order.
  std::vector<std::string> variables(const Words& overrides,
                                     const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CHASSIS_THREAD_WAIT", "OMP_NUM_THREADS"})
      unsetenv(name);
    Words words = command(overrides);
    words.push_back("run.max_steps=100000");
    std::filesystem::remove(scratch_ / "output.txt");  // from the run before
    Process run(words, scratch_.path(), environment);
    EXPECT_TRUE(run.wait_for("step 1/")) << run.output_so_far();
    std::vector<std::string> found;
    std::istringstream all(text_of_file("/proc/" + std::to_string(run.id()) + "/environ"));
    for (std::string one; std::getline(all, one, '\0');)
      for (const char* name : {"OMP_WAIT_POLICY=", "GOMP_SPINCOUNT=", "CHASSIS_THREAD_WAIT="})
        if (one.starts_with(name)) found.push_back(one);
    std::sort(found.begin(), found.end());
    run.kill_all();
    run.wait();
    std::filesystem::remove_all(scratch_ / "out");
    return found;
  }
};

TEST_F(ThreadWait, ThreadsStayAwakeForAMomentWhereEachHasACoreAndSleepWhereTheyShareCores) {
  const std::vector<std::string> briefly = {"CHASSIS_THREAD_WAIT=brief", "GOMP_SPINCOUNT=3000",
                                            "OMP_WAIT_POLICY=PASSIVE"};
  const std::vector<std::string> asleep = {"CHASSIS_THREAD_WAIT=asleep", "GOMP_SPINCOUNT=0", "OMP_WAIT_POLICY=PASSIVE"};
  EXPECT_EQ(variables({"log.every_steps=1"}), briefly);
  EXPECT_EQ(variables({"log.every_steps=1", "run.threads=48"}), asleep);
  EXPECT_EQ(variables({"log.every_steps=1"}, {{"OMP_NUM_THREADS", "48"}}), asleep);
}

// As many threads as cores are brief in one process, and asleep in each of two ranks that share them.
TEST_F(ThreadWait, RanksOfAMachineShareItsCores) {
  if (usable_cores() < 2) GTEST_SKIP() << "one thread is not enough to wait";
  const std::string threads = "run.threads=" + std::to_string(static_cast<int>(usable_cores()));
  const Words one = {"log.every_steps=1", threads},
              two = {"log.every_steps=1", threads, "--nproc", "2", "parallel=[{plugin=\"ddp\"}]"};
  EXPECT_EQ(variables(one).front(), "CHASSIS_THREAD_WAIT=brief");
  EXPECT_EQ(variables(two).front(), "CHASSIS_THREAD_WAIT=asleep");
}

TEST_F(ThreadWait, WhatTheUserSetStays) {
  EXPECT_EQ(variables({"log.every_steps=1", "run.threads=48"}, {{"OMP_WAIT_POLICY", "ACTIVE"}}),
            (std::vector<std::string>{"OMP_WAIT_POLICY=ACTIVE"}));
  EXPECT_EQ(variables({"log.every_steps=1", "run.threads=48"}, {{"GOMP_SPINCOUNT", "7"}}),
            (std::vector<std::string>{"GOMP_SPINCOUNT=7"}));
}

}  // namespace
}  // namespace chassis::test
