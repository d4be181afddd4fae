// Sinks of plugins in whole runs: what they get, and that none of their faults reaches the run.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "host/base/file.hpp"
#include "tests/regress/started_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

class Sinks : public testing::Test, protected StartedRun {
 protected:
  Sinks()
      : StartedRun({"run.threads=1", "train.micro_batch_size=2", "train.global_batch_size=2", "--plugin-path",
                    CHASSIS_TEST_STUB_DIR}) {}

  std::string run(const std::string& name, const std::string& fault, int steps = 4) {
    return train(name, {"log.sinks=console,jsonl,faulty_sink", "log.faulty_sink.fault=\"" + fault + "\"",
                        "run.max_steps=" + std::to_string(steps)});
  }
  std::string sink_file(const std::string& name) { return read_file(directory(name) + "/sink.txt"); }
  static size_t num_lines(const std::string& text) { return static_cast<size_t>(std::ranges::count(text, '\n')); }
};

TEST_F(Sinks, GetEveryStepInOrderBetweenStartAndFinish) {
  run("sound", "none");
  EXPECT_EQ(sink_file("sound"),
            "start 0 of 4 run\nstep 1 loss\nstep 2 loss\nstep 3 loss\nstep 4 loss\ntext 2 checkpoint\n"
            "finish 1 at 4 dropped 0\n");
  run("sound", "none", 6);
  EXPECT_HAS(sink_file("sound"), "start 4 of 6 run\nstep 5 loss\nstep 6 loss\n");
}

TEST_F(Sinks, ThatThrowAreCounted) {
  EXPECT_HAS(run("start", "start"),
             "sink 'faulty_sink' failed in start, and the run continues: plugin 'faulty_sink' 0.1.0: no start today");
  const std::string output = run("scalars", "odd");
  EXPECT_HAS(output, "sink 'faulty_sink' failed (2 times)");
  const std::string taken = sink_file("scalars");
  for (const char* line : {"step 2 loss\n", "step 4 loss\n", "text 3 warning\n"}) EXPECT_HAS(taken, line);
  for (const char* name : {"start", "scalars"}) EXPECT_EQ(num_lines(read_file(directory(name) + "/metrics.jsonl")), 4u);
}

TEST_F(Sinks, ThatBlockLoseRecordsAndAreLeftBehind) {
  const std::string output = run("blocked", "block");
  EXPECT_HAS(output, "sink 'faulty_sink' does not end");
  EXPECT_HAS(output, "4 records that sink 'faulty_sink' did not get");  // steps 2 to 4, and a checkpoint
  EXPECT_EQ(num_lines(read_file(directory("blocked") + "/metrics.jsonl")), 4u);
  EXPECT_HAS(run("late", "block at the end"), "sink 'faulty_sink' does not end");
}

TEST_F(Sinks, ThatUseAllDescriptorsLeaveThoseOfSaves) {
  const std::string output = train("descriptors", {"log.sinks=console,jsonl,faulty_sink", "checkpoint.every_steps=2",
                                                   "log.faulty_sink.fault=descriptors", "run.max_steps=6"});
  for (const int64_t step : {2, 4, 6}) EXPECT_TRUE(is_checkpoint(checkpoint("descriptors", step))) << output;
  EXPECT_TRUE(is_checkpoint(directory("descriptors") + "/final"));
}

TEST_F(Sinks, ThatChangeTheProcessEndTheRun) {
  const std::pair<const char*, const char*> faults[] = {
      {"umask", "a plugin changed the umask from 0"},
      {"folder", "a plugin changed the working directory from "},
      {"signal", "a plugin changed the handler of SIGSEGV from another function to the default"}};
  for (const auto& [fault, text] : faults) {
    const Outcome outcome = start(fault, {"log.sinks=console,jsonl,faulty_sink",
                                          "log.faulty_sink.fault=" + std::string(fault), "run.max_steps=50"});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
    EXPECT_HAS(outcome.output, text);
    EXPECT_HAS(outcome.output, "plugin 'faulty_sink' 0.1.0");
    EXPECT_FALSE(std::filesystem::exists(directory(fault) + "/final"));
  }
}

TEST_F(Sinks, ThatDoNotExistAreRefusedBeforeTheRun) {
  const Outcome outcome = start("absent", {"log.sinks=console,wandb"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "wandb");
  EXPECT_HAS(start("unknown", {"log.sinks=console,faulty_sink", "log.faulty_sink.falt=\"none\""}).output,
             "unknown key 'log.faulty_sink.falt' (did you mean 'fault'?)");
  EXPECT_HAS(start("unlisted", {"log.csv.x=1"}).output, "'csv' is not in log.sinks");
}

}  // namespace
}  // namespace chassis::test
