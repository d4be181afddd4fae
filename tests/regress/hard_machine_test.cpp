// Runs on machines that are short of something, or whose ranks are killed or slow: they end, or go on, within seconds.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "tests/regress/quant_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr double kDeadlineSeconds = 5.0;
const std::string kTensor = "[[parallel]]\nplugin = \"tensor\"\n[mesh]\ntp = 2\n";
const std::vector<std::string> kSaves = {"checkpoint.every_steps=1"};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The process of a rank that runs in this folder.
std::optional<pid_t> process_of_rank(const std::string& folder, int rank) {
  const std::string variable = "CHASSIS_RANK=" + std::to_string(rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::error_code ignored;
    if (fs::read_symlink(entry.path() / "cwd", ignored) != fs::canonical(folder)) continue;
    std::istringstream variables(text_of_file(entry.path() / "environ"));
    for (std::string one; std::getline(variables, one, '\0');)
      if (one == variable) return static_cast<pid_t>(std::stol(name));
  }
  return std::nullopt;
}

// Waits for the end and returns the seconds that it took. Kills the run after the deadline.
double seconds_to_end(const Process& process) {
  const Clock::time_point start = Clock::now();
  while (process.running() && seconds_since(start) < 4 * kDeadlineSeconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (process.running()) process.kill_all();
  return seconds_since(start);
}

TEST(QloraOnTwoRanks, ContinuesBitForBitAfterKillsAtAnyMoment) {
  QuantRun run(96, kEvenSizes);
  const std::string tables = quant() + kTensor;
  const Clock::time_point start = Clock::now();
  const QuantResult whole = run(tables, 2, kSaves);
  const double seconds = seconds_since(start);
  std::mt19937 random(7);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(i);
    fs::remove_all(run.folder() / "run");
    const auto process = run.start(tables, 2, kSaves);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::uniform_real_distribution(0.1, seconds)(random)));
    if (const auto rank = process_of_rank(run.folder().path(), i % 2)) kill(*rank, SIGKILL);
    EXPECT_LT(seconds_to_end(*process), kDeadlineSeconds);
    process->wait();
    const Outcome rest = run.train(tables, 2, kSaves);
    const bool was_done = rest.output.find("nothing is left to train") != std::string::npos;
    EXPECT_TRUE(rest.exit_code == 0 || was_done) << rest.output;
    const QuantResult result = run.result();
    EXPECT_EQ(result.losses, whole.losses);
    EXPECT_TRUE(result.tensors == whole.tensors);
  }
}

TEST(SlowRank, OfThirtySecondsChangesNothing) {
  QuantRun run(96, kEvenSizes);
  const std::string tables = quant() + kTensor;
  const QuantResult whole = run(tables, 2, kSaves);
  fs::remove_all(run.folder() / "run");
  const auto process = run.start(tables, 2, kSaves);
  ASSERT_TRUE(process->wait_for("step 1"));
  const auto rank = process_of_rank(run.folder().path(), 1);
  ASSERT_TRUE(rank.has_value());
  kill(*rank, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::seconds(30));
  EXPECT_TRUE(process->running());
  kill(*rank, SIGCONT);
  EXPECT_LT(seconds_to_end(*process), kDeadlineSeconds);
  const Outcome outcome = process->wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const QuantResult result = run.result();
  EXPECT_EQ(result.losses, whole.losses);
  EXPECT_TRUE(result.tensors == whole.tensors);
}

// The second save does not fit on the disk that one rank of three writes to.
TEST(FullDiskOfOneRank, EndsTheRunAndLeavesWhatIsThere) {
  QuantRun run(96, kEvenSizes);
  const std::string tables = kLora + "[[parallel]]\nplugin = \"fsdp2\"\n";
  std::vector<std::string> saves = kSaves;
  saves.insert(saves.end(), {"checkpoint.contents=full", "export.when=never"});
  const QuantResult whole = run(tables, 3, saves);
  fs::remove_all(run.folder() / "run");
  setenv("LD_PRELOAD", CHASSIS_FULL_DISK, 1);
  setenv("FULL_DISK_RANK", "1", 1);
  const auto first = static_cast<int64_t>(fs::file_size(run.folder() / "base/model.safetensors"));
  setenv("FULL_DISK_BYTES", std::to_string(first / 2).c_str(), 1);
  const auto process = run.start(tables, 3, saves);
  EXPECT_LT(seconds_to_end(*process), 2 * kDeadlineSeconds);
  const Outcome outcome = process->wait();
  for (const char* name : {"LD_PRELOAD", "FULL_DISK_RANK", "FULL_DISK_BYTES"}) unsetenv(name);
  EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
  EXPECT_HAS(outcome.output, "No space left on device");
  EXPECT_HAS(outcome.output, "rank 1");
  const Outcome rest = run.train(tables, 3, saves);
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  const QuantResult result = run.result();
  EXPECT_EQ(result.losses, whole.losses);
  EXPECT_TRUE(result.tensors == whole.tensors);
}

// A run of two ranks by this shell, after these commands.
Outcome run_after(const QuantRun& run, const std::string& commands) {
  const std::string line = commands + " && exec " CHASSIS_PROGRAM " train run.toml run.output_dir=after --nproc 2";
  Process process({"/usr/bin/unshare", "-m", "/bin/sh", "-c", line}, run.folder().path());
  seconds_to_end(process);
  return process.wait();
}

TEST(ScarceMachine, WithOneMebibyteOfSharedMemoryTrains) {
  QuantRun run(96, kEvenSizes);
  const QuantResult whole = run(quant() + kTensor, 2);
  const Outcome outcome = run_after(run, "mount -t tmpfs -o size=1m none /dev/shm || exit 99");
  if (outcome.exit_code == 99 || outcome.output.find("unshare failed") != std::string::npos)
    GTEST_SKIP() << "nothing may be mounted here";
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(ScarceMachine, InAControlGroupThatIsTooSmallIsRefused) {
  QuantRun run(96, kEvenSizes);
  const QuantResult whole = run(quant() + kTensor, 2);
  const std::string group = "/sys/fs/cgroup/chassis-test-" + std::to_string(getpid());
  const Clock::time_point start = Clock::now();
  const Outcome outcome = run_after(run, "mkdir " + group + " && echo 48M > " + group + "/memory.max && echo $$ > " +
                                             group + "/cgroup.procs || exit 99");
  const double seconds = seconds_since(start);
  std::error_code ignored;
  fs::remove(group, ignored);
  if (outcome.exit_code == 99 || outcome.output.find("unshare failed") != std::string::npos)
    GTEST_SKIP() << "no control group may be made here";
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_LT(seconds, kDeadlineSeconds);
  EXPECT_TRUE(outcome.exit_code == 4 || outcome.output.find("SIGKILL") != std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace chassis::test
