// Real launchers, if this machine has them: torchrun of the Python package, mpirun of OpenMPI.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;
using Words = std::vector<std::string>;

const std::string kProgram = CHASSIS_TEST_BINARY_DIR "/tests/host/launch/rank_program";

// Empty if the program is not found.
std::string path_of(const std::string& program, const std::string& preferred = "") {
  if (!preferred.empty() && std::filesystem::exists(preferred)) return preferred;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (std::filesystem::exists(folder + "/" + program)) return folder + "/" + program;
  return "";
}

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class Torchrun : public testing::Test {
 protected:
  void SetUp() override {
    torchrun_ = path_of("torchrun", CHASSIS_TEST_SOURCE_DIR "/.deps/interop-venv/bin/torchrun");
    if (torchrun_.empty()) GTEST_SKIP() << "there is no torchrun";
  }
  Outcome run(const Words& options, const Words& what) {
    return test::run_process(joined(joined({torchrun_, "--no-python"}, options), joined({kProgram}, what)),
                             scratch_.path());
  }
  std::string torchrun_;
  test::ScratchDirectory scratch_;
};

TEST_F(Torchrun, RanksMeetInTheStoreOfTheAgent) {
  for (const Words& options : {Words{"--nproc-per-node=3"}, Words{"--nproc-per-node=3", "--standalone"}}) {
    const Outcome end = run(options, {"show"});
    EXPECT_EQ(end.exit_code, 0) << end.output;
    for (const char* rank : {"0", "1", "2"})
      EXPECT_HAS(end.output, std::string("rank ") + rank + " sees 0/3 … 2/3, local " + rank + "/3");
    EXPECT_HAS(end.output, "by torchrun");
  }
}

TEST_F(Torchrun, TwoAgentsMakeOneRun) {
  const std::string port = std::to_string(20000 + getpid() % 12000);
  const auto agent = [&](const char* node) {
    return joined({torchrun_, "--no-python", "--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1"},
                  {"--master-port=" + port, std::string("--node-rank=") + node, kProgram, "show"});
  };
  const test::ScratchDirectory other;
  Process first(agent("0"), scratch_.path()), second(agent("1"), other.path());
  const Outcome a = first.wait(), b = second.wait();
  EXPECT_EQ(a.exit_code, 0) << a.output;
  EXPECT_EQ(b.exit_code, 0) << b.output;
  for (const char* rank : {"0", "1"})
    EXPECT_HAS(a.output, std::string("rank ") + rank + " sees 0/4 … 3/4, local " + rank + "/2");
  EXPECT_HAS(b.output, "rank 3 sees 0/4 … 3/4, local 1/2");
}

TEST_F(Torchrun, ARestartFindsNoTraceOfTheFirstStart) {
  const Outcome end = run({"--nproc-per-node=2", "--max-restarts=1"}, {"fail-once", "1", scratch_ / "has-failed"});
  EXPECT_EQ(end.exit_code, 0) << end.output;
  EXPECT_HAS(end.output, "[rank 1] error: only this time");
  EXPECT_HAS(end.output, "rank 0 went on");
  EXPECT_HAS(end.output, "rank 1 went on");
}

TEST_F(Torchrun, TheErrorOfOneRankEndsAll) {
  const Outcome end = run({"--nproc-per-node=3"}, {"fail", "2"});
  EXPECT_NE(end.exit_code, 0);
  EXPECT_HAS(end.output, "[rank 2] error: out of device memory");
}

class Mpirun : public testing::Test {
 protected:
  void SetUp() override {
    mpirun_ = path_of("mpirun");
    if (mpirun_.empty()) GTEST_SKIP() << "there is no mpirun";
  }
  Outcome run(const Words& what) {
    const Words command = {mpirun_, "-np", "3", "--oversubscribe", kProgram};
    return test::run_process(joined(command, what), scratch_.path(),
                             {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  }
  std::string mpirun_;
  test::ScratchDirectory scratch_;
};

TEST_F(Mpirun, RanksMeetInTheStoreOfTheFirst) {
  const Outcome end = run({"show"});
  EXPECT_EQ(end.exit_code, 0) << end.output;
  for (const char* rank : {"0", "1", "2"})
    EXPECT_HAS(end.output, std::string("rank ") + rank + " sees 0/3 … 2/3, local " + rank + "/3");
  EXPECT_HAS(end.output, "by OpenMPI");
}

TEST_F(Mpirun, TheErrorOfOneRankEndsAll) {
  for (const char* rank : {"0", "2"}) {
    const Outcome end = run({"fail", rank});
    EXPECT_EQ(end.exit_code, 4) << end.output;
    EXPECT_HAS(end.output, "error: out of device memory");
  }
}

TEST_F(Mpirun, ARankThatIsKilledEndsAll) {
  for (const char* rank : {"0", "2"}) EXPECT_NE(run({"die", rank, "9"}).exit_code, 0);
}

}  // namespace
}  // namespace chassis
