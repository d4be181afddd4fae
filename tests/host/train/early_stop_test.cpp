// Whole runs with eval.keep_best and eval.patience. With a learning rate near 0, every loss of the evaluation is the
// same, so the first one stays the lowest.
#include <gtest/gtest.h>

#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using Words = std::vector<std::string>;

class KeepBest : public test::ProgramRun {
 protected:
  Outcome run(const Words& more, bool learns = false) {
    Words words = {"data.eval_fraction=0.2", "eval.every_steps=1", "eval.keep_best=eval", "checkpoint.keep_last=1",
                   "checkpoint.every_steps=1"};
    if (!learns) words.push_back("optimizer.lr=1e-30");
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  }
  std::vector<std::string> checkpoints() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(scratch_ / "out/checkpoints"))
      if (entry.path().filename().string().starts_with("step-")) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string best() { return fs::read_symlink(scratch_ / "out/best").string(); }
  size_t num_steps() {
    size_t count = 0;
    for (const Json& line : metrics("out")) count += line.contains("lr");
    return count;
  }
};

TEST_F(KeepBest, TheCheckpointWithTheLowestLossIsKept) {
  const Outcome first = run({});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_EQ(best(), "checkpoints/step-000001");
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000006"}));
  EXPECT_TRUE(fs::exists(scratch_ / "out/best/model.safetensors") || fs::exists(scratch_ / "out/best/manifest.json"));
  EXPECT_HAS(first.output,
             "on \"eval\" at step 1; out/best, and final/ has the last weights: chassis ckpt export out/best DIR");
  const Outcome more = run({"run.max_steps=8"});
  ASSERT_EQ(more.exit_code, 0) << more.output;
  EXPECT_EQ(best(), "checkpoints/step-000001");
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000008"}));
}

TEST_F(KeepBest, ALowerLossTakesThePlaceOfTheBest) {
  const Outcome outcome = run({"checkpoint.every_steps=0"}, true);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(best(), "checkpoints/step-000006");
  EXPECT_EQ(outcome.output.find("final/ has the last weights"), std::string::npos) << "they are the best";
  EXPECT_EQ(checkpoints(), (Words{"step-000006"}));
}

TEST_F(KeepBest, ARunWithoutPatienceLeftStopsEarlyAndStaysStopped) {
  const Outcome first = run({"eval.patience=2"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  EXPECT_HAS(first.output, "stopped early: 2 evaluations in a row were not better than loss ");
  EXPECT_HAS(first.output, "raise eval.patience to train further");
  EXPECT_TRUE(fs::exists(scratch_ / "out/final/model.safetensors"));
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000003"}));
  const Outcome again = run({"eval.patience=2"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_HAS(again.output, "stopped early: 2 evaluations");
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000003"}));
  const Outcome more = run({"eval.patience=3"});
  EXPECT_EQ(more.exit_code, 0) << more.output;
  EXPECT_HAS(more.output, "stopped early: 3 evaluations");
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000004"}));
}

TEST_F(KeepBest, ARunWithoutAFiniteLossSaysSo) {
  const Outcome outcome = run({"optimizer.lr=1e30", "optimizer.max_grad_norm=0", "train.nonfinite=skip"}, true);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_FALSE(fs::exists(scratch_ / "out/best"));
  EXPECT_HAS(outcome.output, "the loss of \"eval\" at step 1 is");
  EXPECT_HAS(outcome.output, "eval.keep_best = \"eval\" has kept nothing");
  EXPECT_HAS(outcome.output, "out/final may be of no use");
}

TEST_F(KeepBest, AResumedRunContinuesToCount) {
  ASSERT_EQ(run({"eval.patience=3", "run.max_steps=2"}).exit_code, 0);
  const Outcome rest = run({"eval.patience=3"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_HAS(rest.output, "stopped early: 3 evaluations");
  EXPECT_EQ(checkpoints(), (Words{"step-000001", "step-000004"}));
}

TEST_F(KeepBest, ABestCheckpointThatIsGoneIsCountedAndReplaced) {
  ASSERT_EQ(run({"run.max_steps=2"}).exit_code, 0);
  fs::remove_all(scratch_ / "out/checkpoints/step-000001");
  const Outcome rest = run({"run.max_steps=4"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_HAS(rest.output, "best checkpoint is gone");
  EXPECT_EQ(best(), "checkpoints/step-000003");
}

TEST_F(KeepBest, SomethingElseCalledBestIsNotReplaced) {
  fs::create_directories(scratch_ / "out/best");
  const Outcome outcome = run({});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "it is not the link that eval.keep_best makes");
}

TEST_F(KeepBest, ARunOnOtherDataNamesTheFileThatChanged) {
  ASSERT_EQ(run({"run.max_steps=1"}).exit_code, 0);
  test::write_text(scratch_ / "corpus.txt", test::text_of_file(scratch_ / "corpus.txt") + "one more line\n");
  const Outcome other = run({"run.max_steps=2"});
  EXPECT_EQ(other.exit_code, 2) << other.output;
  EXPECT_HAS(other.output, "corpus.txt had content \"");
}

TEST_F(KeepBest, UnknownSetsAndKeysWithoutEffectAreRefused) {
  EXPECT_HAS(run({"eval.keep_best=valid"}).output,
             "eval.keep_best = \"valid\" is not an evaluation set: there are \"eval\"");
  EXPECT_HAS(run({"eval.every_steps=0"}).output, "eval.keep_best = \"eval\" needs eval.every_steps");
  EXPECT_HAS(run({"eval.keep_best=", "eval.patience=2"}).output, "eval.patience = 2 needs eval.keep_best");
  EXPECT_HAS(run({"data.eval_fraction=0"}).output, "there is none; add [[data.eval]]");
}

}  // namespace
}  // namespace chassis
