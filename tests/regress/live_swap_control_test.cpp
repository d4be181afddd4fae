// An operator changes a run that trains: `chassis ctl` as a process beside it.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/regress/started_run.hpp"

namespace chassis::test {
namespace {

using namespace std::chrono_literals;

// A run of two ranks in the background, until it is stopped.
class OperatedRun : public StartedRun {
 public:
  OperatedRun()
      : StartedRun({"run.max_steps=100000", "log.every_steps=1000", "train.micro_batch_size=2",
                    "train.global_batch_size=4", "run.threads=1"}),
        process_(command("run", {}, {"fsdp2", 2, "[[parallel]]\nplugin = \"fsdp2\"\n"}), folder().path()) {
    for (int i = 0; i < 600 && ctl({"status"}).exit_code != 0; ++i) std::this_thread::sleep_for(100ms);
  }

  Outcome ctl(std::vector<std::string> words) const {
    words.insert(words.begin(), {CHASSIS_PROGRAM, "ctl", directory("run")});
    ScratchDirectory scratch;
    return Process(words, scratch.path()).wait();
  }
  // The value of an event of the last swap with this outcome.
  nlohmann::json swap_that(const std::string& outcome) const {
    std::istringstream lines(text_of_file(directory("run") + "/events.jsonl"));
    nlohmann::json found;
    for (std::string line; std::getline(lines, line);)
      if (auto event = nlohmann::json::parse(line); event["event"] == "swap" && event["outcome"] == outcome)
        found = std::move(event);
    return found;
  }
  // Asks it to stop, and returns its exit code.
  int stop() {
    process_.send(SIGTERM);
    return process_.wait().exit_code;
  }

 private:
  Process process_;
};

TEST(LiveSwapControl, ChecksSwapsRefusesAndRollsBack) {
  OperatedRun run;
  Outcome said = run.ctl({"status"});
  ASSERT_EQ(said.exit_code, 0) << said.output;
  EXPECT_NE(said.output.find("generation 0"), std::string::npos) << said.output;

  said = run.ctl({"check", "attention.plugin=interval"});
  EXPECT_EQ(said.exit_code, 0) << said.output;
  EXPECT_NE(said.output.find("checked"), std::string::npos) << said.output;

  said = run.ctl({"swap", "attention.plugin=interval"});
  EXPECT_EQ(said.exit_code, 0) << said.output;
  EXPECT_NE(said.output.find("committed"), std::string::npos) << said.output;
  EXPECT_EQ(run.swap_that("committed")["generation"], 1);

  said = run.ctl({"swap", "attention.plugin=sdpa", "--generation", "0"});
  EXPECT_EQ(said.exit_code, 2) << said.output;  // another operator was faster

  said = run.ctl({"swap", "parallel=[{ plugin = \"zero\", stage = 3 }]"});
  EXPECT_EQ(said.exit_code, 0) << said.output;
  EXPECT_EQ(run.swap_that("committed")["generation"], 2);

  said = run.ctl({"swap", "train.seq_len=16", "model.init=random"});
  EXPECT_EQ(said.exit_code, 2) << said.output;
  EXPECT_NE(said.output.find("train.seq_len (32 -> 16)"), std::string::npos) << said.output;

  said = run.ctl({"swap", "attention.plugin=nothing"});
  EXPECT_EQ(said.exit_code, 2) << said.output;
  said = run.ctl({"swap", "attention.plugin=interval"});
  EXPECT_EQ(said.exit_code, 2) << said.output;
  EXPECT_NE(said.output.find("nothing changes"), std::string::npos) << said.output;
  said = run.ctl({"rollback"});
  EXPECT_EQ(said.exit_code, 2) << said.output;
  EXPECT_NE(said.output.find("no swap is on probation"), std::string::npos) << said.output;

  said = run.ctl({"status"});
  EXPECT_NE(said.output.find("zero"), std::string::npos) << said.output;
  EXPECT_EQ(run.stop(), 75);
  said = run.ctl({"status"});
  EXPECT_EQ(said.exit_code, 2) << said.output;
}

TEST(LiveSwapControl, ChangesTheLearningRateWithoutANewState) {
  OperatedRun run;
  const Outcome said = run.ctl({"swap", "optimizer.lr=1e-4", "checkpoint.every_steps=7"});
  EXPECT_EQ(said.exit_code, 0) << said.output;
  EXPECT_EQ(run.swap_that("committed")["tensors"], 0.0);
  EXPECT_EQ(run.stop(), 75);
}

}  // namespace
}  // namespace chassis::test
