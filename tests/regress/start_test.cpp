// Messages and exit codes where the system does not offer what the program needs, and signals that come early.
#include <signal.h>

#include <chrono>
#include <filesystem>

#include "tests/support/program_run.hpp"

namespace chassis::test {
namespace {

class Start : public ProgramRun {
 protected:
  Start() {
    write_text(scratch_ / "ranks.toml", text_of_file(scratch_ / "run.toml") + "[[parallel]]\nplugin = \"ddp\"\n");
  }
  void expect_end(const std::string& line, int exit_code, const std::string& words) {
    const Outcome end = shell(line);
    EXPECT_EQ(end.exit_code, exit_code) << line << "\n" << end.output;
    EXPECT_HAS(end.output, words);
  }
};

TEST_F(Start, TooFewOpenFilesAreSaidWithBothNumbers) {
  expect_end(
      "ulimit -n 10; exec \"$CHASSIS\" train run.toml", 2,
      "error: a process may have 10 open files here, but needs 24 or more\nhint: raise the limit, as with: ulimit -n");
  expect_end("ulimit -S -n 10; exec \"$CHASSIS\" train run.toml run.max_steps=1", 0, "done at step 1");
  // The number that is asked for is enough.
  expect_end("ulimit -n 24; exec \"$CHASSIS\" train run.toml run.max_steps=1 run.output_dir=few", 0, "done at step 1");
  expect_end("ulimit -n 30; exec \"$CHASSIS\" train ranks.toml run.max_steps=1 run.output_dir=few2 --nproc 2", 0,
             "done at step 1");
  expect_end("ulimit -n 64; exec \"$CHASSIS\" train ranks.toml --nproc 64", 2,
             "64 ranks need 92 open files and connections each, but a process may have 64");
}

TEST_F(Start, TooLittleDataIsOutOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory has no limit";
#endif
  expect_end("ulimit -d 50000; exec \"$CHASSIS\" version", 4,
             " MiB of data (RLIMIT_DATA) to start, but this process may have 48 MiB");
  int exit_code = -1;
  for (int mib = 24; mib < 4096 && exit_code != 0; mib += 8) {
    const Outcome end = shell("ulimit -d " + std::to_string(mib * 1024) + "; exec \"$CHASSIS\" version");
    exit_code = end.exit_code;
    EXPECT_TRUE(exit_code == 4 || exit_code == 0) << mib << " MiB: " << end.output;
    if (exit_code == 4) {
      EXPECT_HAS(end.output, "RLIMIT_DATA");
    }
  }
  EXPECT_EQ(exit_code, 0);
}

// From a limit under which not even the libraries are loaded to one that is enough, nothing aborts.
TEST_F(Start, TooLittleAddressSpaceIsOutOfMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "shadow memory has no limit";
#endif
  int num_said = 0, exit_code = -1;
  for (int mib = 200; mib < 8192 && exit_code != 0; mib += 24) {
    const Outcome end = shell("ulimit -v " + std::to_string(mib * 1024) + "; exec \"$CHASSIS\" version");
    exit_code = end.exit_code;
    constexpr int kLoaderFailed = 127;
    EXPECT_TRUE(exit_code == kLoaderFailed || exit_code == 4 || exit_code == 0) << mib << " MiB: " << end.output;
    if (exit_code != 4) continue;
    ++num_said;
    EXPECT_HAS(end.output, "error: out of host memory: the program and its libraries need ");
    EXPECT_HAS(end.output, "but this process may have " + std::to_string(mib) + " MiB\nhint: raise the limit");
  }
  EXPECT_EQ(exit_code, 0);
  EXPECT_GE(num_said, 1);
}

TEST_F(Start, ADeletedWorkingDirectoryIsSaid) {
  expect_end("top=$PWD; mkdir gone; cd gone; rmdir ../gone; exec \"$CHASSIS\" train $top/run.toml", 2,
             "error: the working directory has been deleted\nhint: cd into one that exists");
}

TEST_F(Start, AClockBefore1970StopsRanksAtOnce) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer must be loaded first";
#endif
  const std::string preloaded = "LD_PRELOAD=" CHASSIS_CLOCK_BEFORE_1970 " exec \"$CHASSIS\" train ";
  expect_end(preloaded + "ranks.toml --nproc 2", 2, "error: the clock of this machine shows a time ");
  // Copies of plugins are marked with the kernel's time: another process would remove copies that look old.
  expect_end("export XDG_CACHE_HOME=$PWD/cache; " + preloaded + "run.toml run.max_steps=1", 0, "done at step 1");
  int num_copies = 0;
  for (const auto& copy : std::filesystem::directory_iterator(scratch_ / "cache/chassis/plugins")) {
    EXPECT_LT(std::filesystem::file_time_type::clock::now() - copy.last_write_time(), std::chrono::hours(1))
        << copy.path();
    ++num_copies;
  }
  EXPECT_GE(num_copies, 3);
}

// SIGUSR1 asks for a save; it waits for a run to answer it.
TEST_F(Start, AnEarlyRequestToSaveDoesNotEndTheProgram) {
  const Process process(
      {"/bin/sh", "-c",
       "echo is $$; exec \"" + program() + "\" train run.toml run.max_steps=2 checkpoint.every_steps=0"},
      scratch_.path());
  ASSERT_TRUE(process.wait_for("is "));
  // The signal is sent once the program has started and blocks it.
  const std::string status = "/proc/" + std::to_string(std::stol(process.output_so_far().substr(3))) + "/status";
  const auto blocks_it = [&] {
    const std::string text = text_of_file(status);
    const size_t at = text.find("SigBlk:");
    return at != std::string::npos && (std::stoull(text.substr(at + 7), nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0;
  };
  while (process.running() && !blocks_it()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.send(SIGUSR1);
  ASSERT_TRUE(process.wait_for("step-000001 saved")) << process.output_so_far();
  EXPECT_TRUE(process.wait_for("done at step 2")) << process.output_so_far();
}

}  // namespace
}  // namespace chassis::test
