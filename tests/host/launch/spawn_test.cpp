// Whole processes: what happens to the ranks of `--nproc` when one fails or is killed, or when the user stops them.
#include "host/launch/spawn.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <chrono>
#include <tuple>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"
#include "tests/support/unused_port.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;
using Words = std::vector<std::string>;

const std::string kProgram = CHASSIS_TEST_BINARY_DIR "/tests/host/launch/rank_program";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// "rank 1 is 4711"
pid_t process_of(int rank, const std::string& output) {
  const std::string mark = "rank " + std::to_string(rank) + " is ";
  const size_t at = output.find(mark);
  return at == std::string::npos ? 0 : std::atoi(output.c_str() + at + mark.size());
}

bool ends(pid_t process) {
  for (int i = 0; i < 3000; ++i) {
    if (kill(process, 0) != 0) return true;
    const std::string state = test::text_of_file("/proc/" + std::to_string(process) + "/stat");
    if (state.find(") Z ") != std::string::npos) return true;  // it is not reaped here
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class Spawn : public testing::Test {
 protected:
  Words command(int num_ranks, const Words& what) {
    Words words = {kProgram, "spawn", std::to_string(num_ranks)};
    words.insert(words.end(), what.begin(), what.end());
    return words;
  }
  Outcome spawn(int num_ranks, const Words& what,
                const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    return test::run_process(command(num_ranks, what), scratch_.path(), environment);
  }
  test::ScratchDirectory scratch_;
};

TEST_F(Spawn, RanksMeetAndTheirOutputPassesThrough) {
  const Outcome run = spawn(3, {"show"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  for (const char* rank : {"0", "1", "2"})
    EXPECT_HAS(run.output, std::string("rank ") + rank + " sees 0/3 … 2/3, local " + rank + "/3");
  EXPECT_EQ(count(run.output, "by chassis --nproc"), 3);
}

TEST_F(Spawn, RanksThatVanishWithExitCode0HaveFailedInThePluginThatTheyWereIn) {
  for (const char* rank : {"1", "-1"}) {
    const Outcome run = spawn(2, {"vanish", rank});
    EXPECT_EQ(run.exit_code, 3) << run.output;
    EXPECT_HAS(run.output,
               "rank 1 ended with exit code 0 before the run was over, inside plugin 'vanishing' 1.0.0 in "
               "step, step 7");
  }
}

TEST_F(Spawn, ARankThatHangsInAPluginSaysSoItself) {
  const Outcome run = spawn(2, {"hang", "1"});
  EXPECT_EQ(run.exit_code, 5) << run.output;
  EXPECT_HAS(run.output,
             "all well: waited 5 s for rank 1; rank 1 has been inside plugin 'endless' 1.0.0 in step, step 7 "
             "for ");
}

TEST_F(Spawn, CoresAreDividedUnlessTheUserSetsThreads) {
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  const std::string share = std::to_string(std::max(1, CPU_COUNT(&cores) / 2));
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(count(spawn(2, {"show"}).output, " " + share + " threads"), 2);
  EXPECT_EQ(count(spawn(2, {"show"}, {{"OMP_NUM_THREADS", "7"}}).output, " 7 threads"), 2);
}

TEST_F(Spawn, WarnsOfMoreRanksThanCores) {
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  const Outcome run = spawn(CPU_COUNT(&cores) + 1, {"show"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "warning: " + std::to_string(CPU_COUNT(&cores) + 1) + " ranks share " +
                             std::to_string(CPU_COUNT(&cores)) + " cores");
}

TEST_F(Spawn, RanksHaveNoInput) {
  const Outcome run = spawn(2, {"read"});
  EXPECT_EQ(count(run.output, "read 0 bytes"), 2) << run.output;
}

TEST_F(Spawn, TheErrorOfOneRankEndsAllAndIsShownOnce) {
  const Outcome run = spawn(3, {"fail", "1"});
  EXPECT_EQ(run.exit_code, 4) << run.output;
  EXPECT_EQ(count(run.output, "[rank 1] error: out of device memory\nhint: buy more\n"), 1) << run.output;
  EXPECT_EQ(count(run.output, "error:"), 1) << run.output;
  EXPECT_HAS(run.output, "stopped: rank 1: out of device memory");
  EXPECT_HAS(run.output, "[rank 2] stopped: rank 1: out of device memory");
}

TEST_F(Spawn, ARankThatIsKilledIsNamedAndEndsAll) {
  const std::tuple<int, int, std::string> cases[] = {
      {0, SIGKILL, "SIGKILL"}, {2, SIGABRT, "SIGABRT"}, {1, SIGTERM, "SIGTERM"}};
  for (const auto& [rank, number, name] : cases) {
    const Outcome run = spawn(3, {"die", std::to_string(rank), std::to_string(number)});
    EXPECT_EQ(run.exit_code, 5) << run.output;
    const std::string text = "rank " + std::to_string(rank) + " was killed by " + name;
    EXPECT_EQ(count(run.output, "error: " + text + " (process "), 1) << run.output;
    EXPECT_EQ(count(run.output, "stopped: " + text), 2) << run.output;
    EXPECT_EQ(count(run.output, "hint: the system kills a process when memory runs out"), number == SIGKILL ? 1 : 0);
  }
}

TEST_F(Spawn, ARankThatIsKilledDuringExchangesEndsAll) {
  for (int rank : {0, 2}) {
    const test::ScratchDirectory scratch;
    Process run(command(3, {"work"}), scratch.path());
    for (const char* any : {"0", "1", "2"})
      ASSERT_TRUE(run.wait_for(std::string("rank ") + any + " is ")) << run.output_so_far();
    kill(process_of(rank, run.output_so_far()), SIGKILL);
    const Outcome end = run.wait();
    EXPECT_EQ(end.exit_code, 5) << end.output;
    EXPECT_EQ(count(end.output, "stopped: rank " + std::to_string(rank) + " was killed by SIGKILL"), 2) << end.output;
  }
}

TEST_F(Spawn, ARankThatExitsWithoutAMessageIsNamedAndEndsAll) {
  const Outcome run = spawn(2, {"leave", "1", "3"});
  EXPECT_EQ(run.exit_code, 3) << run.output;
  EXPECT_HAS(run.output, "error: rank 1 ended with exit code 3 (process ");
  EXPECT_HAS(run.output, "stopped: rank 1 ended with exit code 3");
}

TEST_F(Spawn, ARankThatFailsBeforeItMeetsTheOthersEndsThem) {
  for (const char* rank : {"0", "1"}) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome run = spawn(3, {"early", rank, "2"});
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_EQ(count(run.output, std::string("stopped: rank ") + rank + " ended with exit code 2"), 2) << run.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << "they wait 20 s for each other";
  }
}

TEST_F(Spawn, RanksThatDoNotEndAreKilled) {
  const Outcome run = spawn(3, {"ignore", "1"});
  EXPECT_EQ(run.exit_code, 6) << run.output;
  EXPECT_HAS(run.output, "[rank 1] error: loss is nan");
  for (const char* rank : {"0", "2"})
    EXPECT_HAS(run.output, std::string("error: rank ") + rank + " did not end within 10 s");
}

TEST_F(Spawn, ARankThatWasStoppedEndsWithTheOthers) {
  Process run(command(3, {"work"}), scratch_.path());
  for (const char* rank : {"0", "1", "2"})
    ASSERT_TRUE(run.wait_for(std::string("rank ") + rank + " is ")) << run.output_so_far();
  kill(process_of(1, run.output_so_far()), SIGSTOP);
  kill(process_of(2, run.output_so_far()), SIGKILL);
  const Outcome end = run.wait();
  EXPECT_EQ(end.exit_code, 5) << end.output;
  EXPECT_HAS(end.output, "[rank 1] stopped: rank 2 was killed by SIGKILL");
}

TEST_F(Spawn, ASignalReachesEveryRankOnce) {
  for (int number : {SIGINT, SIGTERM, SIGUSR1}) {
    const test::ScratchDirectory scratch;
    Process run(command(3, {"signals"}), scratch.path());
    for (const char* rank : {"0", "1", "2"})
      ASSERT_TRUE(run.wait_for(std::string("rank ") + rank + " is ")) << run.output_so_far();
    run.send(number);
    const Outcome end = run.wait();
    EXPECT_EQ(end.exit_code, 75) << end.output;
    EXPECT_EQ(count(end.output, " heard 1\n"), 3) << end.output;
  }
}

TEST_F(Spawn, CtrlCAtATerminalReachesEveryRankOnce) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) GTEST_SKIP() << "no pseudo-terminals here";
  const std::string name = ptsname(terminal);
  // A new session with this terminal, as a shell has.
  const Process run(
      {"/usr/bin/setsid", "--wait", "/bin/sh", "-c", "exec < " + name + "; exec " + kProgram + " spawn 3 signals"},
      scratch_.path());
  for (const char* rank : {"0", "1", "2"})
    ASSERT_TRUE(run.wait_for(std::string("rank ") + rank + " is ")) << run.output_so_far();
  ASSERT_EQ(write(terminal, "\3", 1), 1);
  for (const char* rank : {"0", "1", "2"})
    EXPECT_TRUE(run.wait_for(std::string("rank ") + rank + " heard 1\n")) << run.output_so_far();
  close(terminal);
}

TEST_F(Spawn, ASignalBeforeARankIsReadyEndsTheRun) {
  Process run(command(2, {"sleep"}), scratch_.path());
  for (const char* rank : {"0", "1"})
    ASSERT_TRUE(run.wait_for(std::string("rank ") + rank + " is ")) << run.output_so_far();
  run.send(SIGTERM);
  const Outcome end = run.wait();
  EXPECT_EQ(end.exit_code, 128 + SIGTERM) << end.output;
  EXPECT_EQ(count(end.output, "error"), 0) << end.output;
  EXPECT_EQ(count(end.output, " was ended by SIGTERM, before it could stop cleanly; nothing is saved\n"), 1)
      << end.output;
}

TEST_F(Spawn, RanksEndWithTheProcessThatStartedThem) {
  for (const char* what : {"sleep", "work"}) {  // they end by the signal, or because they lose the store
    const test::ScratchDirectory scratch;
    Process run(command(2, {what}), scratch.path());
    for (const char* rank : {"0", "1"})
      ASSERT_TRUE(run.wait_for(std::string("rank ") + rank + " is ")) << run.output_so_far();
    const std::string output = run.output_so_far();
    run.send(SIGKILL);
    run.wait();
    for (int rank : {0, 1}) EXPECT_TRUE(ends(process_of(rank, output))) << rank;
    if (what == std::string("work")) {
      EXPECT_HAS(run.output_so_far(), "the launcher is gone: lost the store");
    }
  }
}

// As in a container without a network.
TEST_F(Spawn, WithoutALoopbackNoRankIsStarted) {
  if (test::run_process({"/usr/bin/unshare", "-n", "/bin/true"}, scratch_.path()).exit_code != 0)
    GTEST_SKIP() << "no network namespaces here";
  Words words = {"/usr/bin/unshare", "-n"};
  for (const std::string& word : command(2, {"show"})) words.push_back(word);
  const Outcome run = test::run_process(words, scratch_.path());
  EXPECT_EQ(run.exit_code, 5) << run.output;
  EXPECT_HAS(run.output, "this machine cannot reach its own address 127.0.0.1: Network is unreachable");
  EXPECT_HAS(run.output, "ip link set lo up");
}

TEST_F(Spawn, TwoRanksOfOneLocalRankAreNamed) {
  const std::string port = std::to_string(test::unused_port());
  std::vector<std::unique_ptr<test::ScratchDirectory>> folders;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    const std::vector<std::pair<std::string, std::string>> environment = {
        {"RANK", rank},        {"WORLD_SIZE", "2"},         {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_PORT", port}, {"MASTER_ADDR", "127.0.0.1"}};
    folders.push_back(std::make_unique<test::ScratchDirectory>());
    ranks.push_back(std::make_unique<Process>(Words{kProgram, "show"}, folders.back()->path(), environment));
  }
  for (const auto& rank : ranks) {
    const Outcome end = rank->wait();
    EXPECT_EQ(end.exit_code, 2) << end.output;
    EXPECT_HAS(end.output, "ranks 0 and 1 are both local rank 0 of one machine: process ");
  }
}

TEST_F(Spawn, ARankOfAnotherLauncherStartsNoRanks) {
  const Outcome run = spawn(2, {"show"},
                            {{"RANK", "1"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "29500"}});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_HAS(run.output, "--nproc 2 starts ranks, but RANK and WORLD_SIZE already started this process as rank 1 of 4");
}

// No parent reaps these ranks, and they do not wait for each other.
TEST_F(Spawn, RanksStartedByHandThatAreBusyEndWithTheFirst) {
  const std::string port = std::to_string(test::unused_port());
  std::vector<std::unique_ptr<test::ScratchDirectory>> folders;
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    const std::vector<std::pair<std::string, std::string>> environment = {
        {"RANK", rank},        {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"},
        {"MASTER_PORT", port}, {"MASTER_ADDR", "127.0.0.1"}, {"GROUP_RANK", rank}};
    folders.push_back(std::make_unique<test::ScratchDirectory>());
    ranks.push_back(std::make_unique<Process>(Words{kProgram, "busy"}, folders.back()->path(), environment));
  }
  for (const char* rank : {"0", "1"})
    ASSERT_TRUE(ranks[static_cast<size_t>(*rank - '0')]->wait_for(std::string("rank ") + rank + " is "));
  ranks[0]->send(SIGKILL);
  const Outcome end = ranks[1]->wait();
  EXPECT_EQ(end.exit_code, 5) << end.output;
  EXPECT_HAS(end.output, "stopped: rank 0 is gone: lost the store at 127.0.0.1:" + port);
  EXPECT_HAS(end.output, "; this rank did not stop within 8 s and is ended");
}

// Two "machines" of two ranks each, started by hand with torchrun's variables.
TEST_F(Spawn, RanksStartedByHandMeetOnTwoAddresses) {
  const int port = test::unused_port();
  std::vector<std::unique_ptr<test::ScratchDirectory>> folders;
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    folders.push_back(std::make_unique<test::ScratchDirectory>());
    const std::vector<std::pair<std::string, std::string>> environment = {
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", "4"},
        {"LOCAL_RANK", std::to_string(rank % 2)},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(port)},
        {"CHASSIS_HOST_ADDRESS", rank < 2 ? "127.0.0.1" : "127.0.0.2"}};
    ranks.push_back(std::make_unique<Process>(Words{kProgram, "show"}, folders.back()->path(), environment));
  }
  for (int rank = 0; rank < 4; ++rank) {
    const Outcome end = ranks[static_cast<size_t>(rank)]->wait();
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_HAS(end.output, "sees 0/4 … 3/4, local " + std::to_string(rank % 2) + "/2");
    EXPECT_HAS(end.output, rank < 2 ? "at 127.0.0.1" : "at 127.0.0.2");
  }
}

}  // namespace
}  // namespace chassis
