// Whole runs of the program: what it leaves behind, and how it is stopped and resumed.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;
using Words = std::vector<std::string>;

using RunTest = test::ProgramRun;

TEST_F(RunTest, LeavesADirectoryThatSaysWhatItWas) {
  const Outcome run = train({"checkpoint.every_steps=3"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  for (const char* name : {"resolved.toml", "run.json", "plugins.lock", "log.txt", "metrics.jsonl", "final/config.json",
                           "final/model.safetensors", "checkpoints/latest", "checkpoints/step-000003/manifest.json",
                           "checkpoints/step-000006/manifest.json"})
    EXPECT_TRUE(std::filesystem::exists(scratch_ / (std::string("out/") + name))) << name;
  EXPECT_EQ(losses("out").size(), 6u);
  const Outcome again = test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "check", "out/resolved.toml"}, scratch_.path());
  EXPECT_EQ(again.exit_code, 0) << "the resolved configuration is one: " << again.output;
}

TEST_F(RunTest, OneSeedGivesTheSameBits) {
  ASSERT_EQ(train({"run.output_dir=a"}).exit_code, 0);
  ASSERT_EQ(train({"run.output_dir=b"}).exit_code, 0);
  expect_same_run("a", "b");
  ASSERT_EQ(train({"run.output_dir=c", "run.seed=1"}).exit_code, 0);
  EXPECT_NE(losses("a"), losses("c"));
}

TEST_F(RunTest, ResumingIsExact) {
  ASSERT_EQ(train({"run.output_dir=whole"}).exit_code, 0);
  ASSERT_EQ(train({"run.output_dir=parts", "run.max_steps=2"}).exit_code, 0);
  ASSERT_EQ(train({"run.output_dir=parts", "run.max_steps=5"}).exit_code, 0);
  const Outcome last = train({"run.output_dir=parts"});
  ASSERT_EQ(last.exit_code, 0) << last.output;
  EXPECT_HAS(last.output, "at step 5");
  expect_same_run("whole", "parts");
}

TEST_F(RunTest, AFinishedRunIsLeftAsItIsAndSaysSo) {
  ASSERT_EQ(train().exit_code, 0);
  const auto before = losses("out");
  const std::string weights = model("out");
  const Outcome again = train();
  EXPECT_EQ(again.exit_code, 2) << again.output;
  EXPECT_HAS(again.output, "run.toml:4:");
  EXPECT_HAS(again.output, "run.max_steps is 6, and the run has reached step 6");
  const Outcome shorter = train({"run.max_steps=4"});
  EXPECT_EQ(shorter.exit_code, 2) << shorter.output;
  EXPECT_HAS(shorter.output, "run.max_steps is 4, and the run has reached step 6");
  EXPECT_EQ(losses("out"), before);
  EXPECT_TRUE(model("out") == weights);
}

TEST_F(RunTest, ARunThatEndedBeforeItsExportMakesIt) {
  ASSERT_EQ(train().exit_code, 0);
  const std::string weights = model("out");
  std::filesystem::remove_all(scratch_ / "out/final");
  const Outcome again = train();
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_TRUE(model("out") == weights);
  EXPECT_EQ(losses("out").size(), 6u);
}

TEST_F(RunTest, MetricsHoldEveryStepHoweverSeldomTheConsoleSpeaks) {
  const Outcome run = train({"log.every_steps=5"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(losses("out").size(), 6u);
  for (const char* line : {"step 1/6", "step 5/6", "step 6/6"}) EXPECT_HAS(run.output, line);
  EXPECT_EQ(run.output.find("step 2/6"), std::string::npos);
}

TEST_F(RunTest, TheFirstLinesSayDataAndResultsAndTheLastOneWhatComesNext) {
  const Outcome run = train();
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "data: 400 documents, ");
  EXPECT_HAS(run.output, "; 6 steps are ");
  EXPECT_HAS(run.output, "results: out: log.txt, metrics.jsonl (every step), checkpoints/");
  EXPECT_HAS(run.output, "next: chassis generate out/resolved.toml --prompt TEXT");
  const Outcome next = shell("exec \"$CHASSIS\" generate out/resolved.toml --prompt line generate.max_new_tokens=2");
  EXPECT_EQ(next.exit_code, 0) << next.output;
  EXPECT_HAS(test::text_of_file(scratch_ / "out/log.txt"), "data: 400 documents");
}

TEST_F(RunTest, MemoryIsATableWithoutEmptyRows) {
  const std::string said = train().output;
  const size_t begin = said.find("memory peak "), end = said.find("\nstep 2/");
  ASSERT_NE(begin, std::string::npos) << said;
  const std::string table = said.substr(begin, end - begin);
  EXPECT_HAS(table, "planned    measured\n  parameters");
  EXPECT_EQ(table.find("0 B           0 B"), std::string::npos) << table;
  EXPECT_EQ(table.find("gathered"), std::string::npos) << table;
}

TEST_F(RunTest, MoreStepsThanThereAreNumbersAreRefused) {
  const Outcome run = train({"run.max_steps=0", "run.epochs=1e17"});
  EXPECT_EQ(run.exit_code, 2) << run.output;
  EXPECT_HAS(run.output, "run.epochs=1e17");
  EXPECT_HAS(run.output, "1e+17 epochs of ");
  EXPECT_HAS(run.output, "a run has at most 9223372036854775807");
}

TEST_F(RunTest, WeightsThatAreNotFiniteAreFoundWhenTheyAreLoaded) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  std::filesystem::rename(scratch_ / "out/final", scratch_ / "model");
  std::filesystem::remove(scratch_ / "model/manifest.json");
  std::string bytes = test::text_of_file(scratch_ / "model/model.safetensors");
  bytes.replace(bytes.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));
  test::write_text(scratch_ / "model/model.safetensors", bytes);
  test::write_text(scratch_ / "from.toml", test::text_of_file(scratch_ / "run.toml"));
  const Outcome run = shell(
      "sed -e '/^config/d' -e 's/^plugin = \"llama\"/path = \"model\"/' run.toml > from.toml;"
      "exec \"$CHASSIS\" train from.toml run.output_dir=tuned train.nonfinite=skip");
  EXPECT_EQ(run.exit_code, 6) << run.output;
  EXPECT_HAS(run.output, "the weights in model are not finite: the first NaN or infinity is in '");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "tuned/final"));
}

TEST_F(RunTest, AnotherRunInTheDirectoryIsRefused) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  const Outcome model = train({"model.config.intermediate_size=48"});
  EXPECT_EQ(model.exit_code, 2);
  EXPECT_HAS(model.output, "run.toml:3:");
  EXPECT_HAS(model.output, "run.output_dir out holds another run: its model is ");
  test::write_text(scratch_ / "corpus.txt", std::string(4000, 'x'));
  const Outcome data = train();
  EXPECT_EQ(data.exit_code, 2);
  EXPECT_HAS(data.output, "run.output_dir out holds another run: its data is ");
  EXPECT_EQ(losses("out").size(), 1u) << "it stays as it was";
}

TEST_F(RunTest, ResumeNeverSparesOldCheckpoints) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  const Outcome anew = train({"run.resume=never"});
  EXPECT_EQ(anew.exit_code, 2);
  EXPECT_HAS(anew.output, "run.resume = \"never\", but out has checkpoints");
}

TEST_F(RunTest, AnotherSeedIsRefusedOnResume) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  const Outcome other = train({"run.seed=5"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_HAS(other.output, "a resumed run keeps its seed");
}

TEST_F(RunTest, AStopSignalFinishesTheStepAndSaves) {
  for (int number : {SIGTERM, SIGINT, SIGHUP}) {
    const std::string signal = std::string("SIG") + sigabbrev_np(number);
    const std::string out = "run.output_dir=" + signal;
    Process run(command({out, "run.max_steps=100000"}), scratch_.path());
    ASSERT_TRUE(run.wait_for("step 3/")) << run.output_so_far();
    run.send(number);
    const Outcome stopped = run.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
    EXPECT_HAS(stopped.output, signal + " at step");
    EXPECT_HAS(stopped.output, "resume with the same command");
    const std::string name = out.substr(out.find('=') + 1);
    const size_t done = losses(name).size();
    EXPECT_GE(done, 3u);
    const Outcome resumed = train({out, "run.max_steps=" + std::to_string(done + 2)});
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_HAS(resumed.output, "at step " + std::to_string(done));
    EXPECT_EQ(losses(name).size(), done + 2);
  }
}

// Whatever the moment, the next start goes on, and the run ends as if nothing had happened.
TEST_F(RunTest, CanBeInterruptedAtAnyMoment) {
  const Words whole = {"run.output_dir=whole", "run.max_steps=300", "checkpoint.every_steps=0"};
  ASSERT_EQ(train(whole).exit_code, 0);
  const Words parts = {"run.output_dir=parts", "run.max_steps=300", "checkpoint.every_steps=70"};
  std::mt19937 random(std::random_device{}());
  int stopped = 0, killed = 0;
  for (int round = 0; round < 5; ++round) {
    const int number = round % 2 ? SIGINT : SIGTERM;
    const bool starting = round < 2;  // the others are met while they train
    const int delay_ms = static_cast<int>(random() % (starting ? 700 : 100));
    Process run(command(parts), scratch_.path());
    EXPECT_TRUE(starting || run.wait_for(" steps of ")) << run.output_so_far();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    run.send(number);
    const Outcome outcome = run.wait();
    // 0: it had finished; 75: it stopped; 128 + n: it was not running yet.
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 75 || outcome.exit_code == 128 + number)
        << "after " << delay_ms << " ms: " << outcome.exit_code << "\n" << outcome.output;
    stopped += outcome.exit_code == 75;
    killed += outcome.exit_code > 128;
  }
  RecordProperty("stopped", stopped);
  RecordProperty("killed", killed);
  EXPECT_GT(stopped, 0) << "no signal met a running step";
  const Outcome last = train(parts);
  EXPECT_EQ(last.exit_code, 0) << last.output;
  expect_same_run("whole", "parts");
}

}  // namespace
}  // namespace chassis
