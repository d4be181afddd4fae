// Runs that fit into memory or do not, and what they report.
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;

class RunMemory : public test::ProgramRun {};

TEST_F(RunMemory, RefusesARunThatDoesNotFitBeforeItWritesAByte) {
  const Outcome run = train({"model.config={hidden_size=65536, num_hidden_layers=80, num_attention_heads=512, "
                             "intermediate_size=262144, vocab_size=259}"});
  EXPECT_EQ(run.exit_code, 4) << run.output;
  EXPECT_HAS(run.output, "the run does not fit: rank 0 on ");
  EXPECT_HAS(run.output, "TiB are planned at the peak, there are ");
  EXPECT_HAS(run.output, "run.memory_check = \"warn\" tries it anyway");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out"));
}

TEST_F(RunMemory, ReportsMemoryAsATableWithoutEmptyRows) {
  const std::string said = train().output;
  const size_t begin = said.find("memory peak "), end = said.find("\nstep 2/");
  ASSERT_NE(begin, std::string::npos) << said;
  const std::string table = said.substr(begin, end - begin);
  EXPECT_HAS(table, "planned    measured\n  parameters");
  EXPECT_EQ(table.find("0 B           0 B"), std::string::npos) << table;
  EXPECT_EQ(table.find("gathered"), std::string::npos) << table;
}

// Runs with another /proc/meminfo.
class RunWithLittleMemory : public RunMemory {
 protected:
  Outcome train_with(int total_kib, int free_kib, const std::string& words) {
    test::write_text(scratch_ / "meminfo", "MemTotal: " + std::to_string(total_kib) + " kB\nMemAvailable: " +
                                               std::to_string(free_kib) + " kB\n");
    return shell("exec unshare -m sh -c 'mount --bind meminfo /proc/meminfo || exit 77; "
                 "exec \"$CHASSIS\" train run.toml run.max_steps=1 " + words + "'");
  }
  static bool is_possible(const Outcome& run) {
    return run.exit_code != 77 && run.output.find("unshare: ") == std::string::npos;
  }
};

TEST_F(RunWithLittleMemory, ARunThatDoesNotFitStartsWithMemoryCheckWarn) {
  const Outcome refused = train_with(100, 100, "");
  if (!is_possible(refused)) GTEST_SKIP() << refused.output;
  EXPECT_EQ(refused.exit_code, 4) << refused.output;
  EXPECT_HAS(refused.output, "error: the run does not fit: ");
  const Outcome tried = train_with(100, 100, "run.memory_check=warn");
  EXPECT_EQ(tried.exit_code, 0) << tried.output;
  EXPECT_HAS(tried.output, "warning: the run does not fit: ");
  EXPECT_HAS(tried.output, "warning: does not fit (once)");
}

// The free memory suffices for one rank, but not for two on one machine: both recompute.
TEST_F(RunWithLittleMemory, RanksRecomputeIfTheyDoNotFitTogether) {
  const int total_kib = 1 << 20, free_kib = 40 << 10;  // a rank needs 32 MiB
  const Outcome alone = train_with(total_kib, free_kib, "");
  if (!is_possible(alone)) GTEST_SKIP() << alone.output;
  EXPECT_EQ(alone.exit_code, 0) << alone.output;
  EXPECT_HAS(alone.output, "recompute auto -> none: ");
  test::write_text(scratch_ / "run.toml",
                   test::text_of_file(scratch_ / "run.toml") + "[[parallel]]\nplugin = \"ddp\"\n");
  const Outcome both = train_with(total_kib, free_kib, "run.output_dir=both --nproc 2");
  EXPECT_EQ(both.exit_code, 0) << both.output;
  EXPECT_HAS(both.output, "recompute auto -> full: ");
  EXPECT_EQ(both.output.find("auto -> none"), std::string::npos) << both.output;
}

}  // namespace
}  // namespace chassis
