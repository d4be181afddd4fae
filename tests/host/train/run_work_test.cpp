// Earlier results in a run directory are not lost: a run resumes, stops or sets them aside, and reports what was saved.
#include <sys/stat.h>

#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::count_of;
using test::Outcome;
using Words = std::vector<std::string>;

class RunWork : public test::ProgramRun {
 protected:
  std::string run(const Words& words, int exit_code = 0) {
    const Outcome outcome = train(words);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  // Runs `script` in a shell in the folder of the run.
  std::string sh(const std::string& script, int exit_code) {
    const Outcome outcome = shell(script);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  bool exists(const std::string& path) const { return fs::exists(scratch_ / path); }
};

TEST_F(RunWork, DoesNotStartAnewIfItsCheckpointsAreGone) {
  run({});
  fs::remove_all(scratch_ / "out/checkpoints");
  const std::string weights = model("out");
  for (int i = 0; i < 2; ++i) {  // the refused run creates the folder again
    const std::string said = run({"run.max_steps=7"}, 2);
    EXPECT_HAS(said, "run.toml:3:");
    EXPECT_HAS(said, "no checkpoint to resume from: metrics.jsonl reaches step 6, final/ is of step 6");
    EXPECT_HAS(said, "model.path = \"out/final\" starts from its weights; run.resume = \"never\" trains from step 1");
  }
  EXPECT_EQ(losses("out").size(), 6u);
  EXPECT_TRUE(model("out") == weights);
  fs::remove_all(scratch_ / "out/final");
  EXPECT_HAS(run({"run.max_steps=7"}, 2), "no checkpoint to resume from: metrics.jsonl reaches step 6\n");
  run({"run.resume=never", "run.max_steps=2"});
  EXPECT_EQ(losses("out").size(), 2u);
}

TEST_F(RunWork, MetricsOfARunThatSavedNothingAreKeptWhenItStartsAnew) {
  run({"checkpoint.on_error=warn", "checkpoint.contents=full", "export.when=never"});
  fs::remove_all(scratch_ / "out/checkpoints");
  std::string about = test::text_of_file(scratch_ / "out/run.json");
  about.replace(about.find("true"), 4, "false");  // as a run that was killed before its first checkpoint leaves it
  test::write_text(scratch_ / "out/run.json", about);
  EXPECT_HAS(run({"run.max_steps=2"}), "metrics.jsonl' is kept as 'out/metrics.jsonl.old-1'");
  EXPECT_EQ(losses("out").size(), 2u);
}

TEST_F(RunWork, AnotherRunNameIsAWarningOrAnErrorIfStrict) {
  run({"run.name=a", "run.max_steps=2"});
  const std::string strict = run({"run.name=b", "run.strict=true"}, 2);
  EXPECT_HAS(strict, "run.name was \"a\", is \"b\": out holds run \"a\"");
  const std::string said = run({"run.name=b"});
  EXPECT_HAS(said,
             "warning: differs from the run that was saved: run.name was \"a\", is \"b\": out holds run \"a\", "
             "and this run continues it; for a new experiment set another run.output_dir");
  const std::string branch =
      run({"run.name=c", "run.output_dir=c", "run.resume=" + (scratch_ / "out/checkpoints/step-000002")});
  EXPECT_EQ(branch.find("warning"), std::string::npos) << branch;
}

TEST_F(RunWork, StepsAfterTheResumedCheckpointAreSetAside) {
  run({"checkpoint.every_steps=2", "checkpoint.keep_last=0"});
  const std::string later = test::text_of_file(scratch_ / "out/checkpoints/step-000006/manifest.json");
  const std::string said = run({"run.resume=out/checkpoints/step-000002", "run.max_steps=4", "optimizer.lr=5e-3"});
  EXPECT_HAS(said,
             "the run continues from out/checkpoints/step-000002 at step 2, and out has reached step 6: "
             "step-000004.replaced, step-000006.replaced are kept in checkpoints/");
  EXPECT_HAS(said, "final/ is replaced at the end");
  EXPECT_TRUE(test::text_of_file(scratch_ / "out/checkpoints/step-000006.replaced/manifest.json") == later);
  EXPECT_EQ(losses("out").size(), 4u);
  EXPECT_TRUE(exists("out/metrics.jsonl.old-1"));
  EXPECT_HAS(run({"run.max_steps=5"}), "resumed from out/checkpoints/step-000004 at step 4");
  EXPECT_HAS(sh("\"$CHASSIS\" ckpt ls out", 0), "set aside as replaced");
}

TEST_F(RunWork, StepsAfterTheCheckpointThatLatestNamesAreSetAside) {
  run({"checkpoint.every_steps=2", "checkpoint.keep_last=0"});
  const std::string later = test::text_of_file(scratch_ / "out/checkpoints/step-000004/manifest.json");
  fs::remove(scratch_ / "out/checkpoints/latest");
  fs::create_symlink("step-000002", scratch_ / "out/checkpoints/latest");
  const std::string said = run({"run.max_steps=5", "checkpoint.every_steps=2", "optimizer.lr=5e-3"});
  EXPECT_HAS(said, "resumed from out/checkpoints/step-000002 at step 2");
  EXPECT_HAS(said, "out has reached step 6: step-000004.replaced, step-000006.replaced are kept in checkpoints/");
  EXPECT_TRUE(test::text_of_file(scratch_ / "out/checkpoints/step-000004.replaced/manifest.json") == later);
  EXPECT_EQ(losses("out").size(), 5u);
  EXPECT_HAS(run({"run.max_steps=6"}), "resumed from out/checkpoints/step-000005 at step 5");
}

TEST_F(RunWork, IsSavedBeforeLostMetricsStopTheRun) {
  fs::create_directories(scratch_ / "out");
  std::string line = R"({"step":0,"loss":1,"grad_norm":1,"trained_tokens":1,"pad":")";
  line += std::string(203998 - line.size(), 'x') + "\"}\n";  // leaves room for two lines below the limit
  test::write_text(scratch_ / "out/metrics.jsonl", line);
  const std::string said = sh("ulimit -f 400; exec \"$CHASSIS\" train run.toml run.max_steps=30", 7);
  EXPECT_HAS(said, "the run saves and stops");
  EXPECT_HAS(said, "error: metrics.jsonl lacks its lines from step ");
  EXPECT_HAS(said, "the last intact checkpoint is out/checkpoints/step-00000");
  EXPECT_HAS(run({}), "resumed from out/checkpoints/step-00000");
}

TEST_F(RunWork, FailedSavesAreCountedAndReportedAtTheEnd) {
  const std::string few = " checkpoint.every_steps=2 train.seq_len=16";
  const std::string warned = sh("ulimit -f 200; exec \"$CHASSIS\" train run.toml checkpoint.on_error=warn" + few, 0);
  EXPECT_EQ(count_of(warned, "was not saved"), 1u) << warned;
  EXPECT_HAS(warned, "4 saves failed, the last at step 6; there is no intact checkpoint in out/checkpoints");
  run({"run.output_dir=b", "run.max_steps=2"});
  fs::remove_all(scratch_ / "b/final");
  // Neither the checkpoint nor final/ fits.
  const std::string into_b = "ulimit -f 60; exec \"$CHASSIS\" train run.toml run.output_dir=b" + few;
  const std::string failed = sh(into_b + " checkpoint.on_error=warn", 7);
  EXPECT_HAS(failed, "failed at step 6 of 6");
  EXPECT_HAS(failed, "3 saves failed, the last at step 6; the last intact checkpoint is b/checkpoints/step-000002");
  const std::string stopped = sh(into_b, 7);
  EXPECT_HAS(stopped, "the last intact checkpoint is b/checkpoints/step-000002");
  EXPECT_HAS(stopped, "RLIMIT_FSIZE is ");
}

TEST_F(RunWork, AFailedExportNamesWhatIsKeptAndHowToExportItAgain) {
  test::Process process(command({"run.max_steps=200"}), scratch_.path());
  ASSERT_TRUE(process.wait_for("step 1/200")) << process.output_so_far();
  fs::create_directories(scratch_ / "out/final/mine");
  const Outcome failed = process.wait();
  EXPECT_EQ(failed.exit_code, 7) << failed.output;
  EXPECT_HAS(failed.output,
             "error: step 200 was not exported to out/final; the checkpoint out/checkpoints/step-000200 is kept\n"
             "caused by: ");
  EXPECT_HAS(failed.output, "'out/final' is in the way: ");
  EXPECT_HAS(failed.output,
             "hint: then `chassis ckpt export out/checkpoints/step-000200 out/final` exports it again\n");
  fs::remove_all(scratch_ / "out/final");
  sh("\"$CHASSIS\" ckpt export out/checkpoints/step-000200 out/final", 0);
}

TEST_F(RunWork, AStopSignalEndsALongPreparationAtOnce) {
  test::Process run(command({"model.config.num_hidden_layers=4096"}), scratch_.path());
  ASSERT_TRUE(run.wait_for("recompute auto")) << run.output_so_far();
  run.send(SIGTERM);
  const Outcome stopped = run.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_HAS(stopped.output, "; nothing was trained");
  EXPECT_FALSE(exists("out/checkpoints/latest"));
}

TEST_F(RunWork, DoesNotStartOnADiskWithoutRoomForACheckpoint) {
  const auto on_small_disk = [&](const std::string& words) {
    return shell("mkdir -p disk; exec unshare -m sh -c 'mount -t tmpfs -o size=1100k none disk || exit 77; "
                 "exec \"$CHASSIS\" train run.toml run.output_dir=disk/out " + words + "'");
  };
  const Outcome stopped = on_small_disk("");
  if (stopped.exit_code == 77 || stopped.output.find("unshare") != std::string::npos) GTEST_SKIP() << stopped.output;
  EXPECT_EQ(stopped.exit_code, 7) << stopped.output;
  EXPECT_HAS(stopped.output, "free, a checkpoint takes 165 KiB, and 1 MiB for its other files");
  EXPECT_EQ(count_of(stopped.output, "hint: "), 1u) << stopped.output;
  EXPECT_EQ(stopped.output.find("step 1/6"), std::string::npos) << "nothing is trained: " << stopped.output;
  EXPECT_HAS(on_small_disk("checkpoint.on_error=warn").output, "warning: no room for a checkpoint (once)");
}

}  // namespace
}  // namespace chassis
