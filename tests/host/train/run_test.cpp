// Whole runs of the program: the files they write, and how they are stopped and resumed.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstring>
#include <random>

#include "host/base/file.hpp"
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;
using Words = std::vector<std::string>;

using RunTest = test::ProgramRun;

TEST_F(RunTest, WritesADirectoryThatDescribesIt) {
  const Outcome run = train({"checkpoint.every_steps=3"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  for (const char* name : {"resolved.toml", "run.json", "plugins.lock", "log.txt", "metrics.jsonl", "final/config.json",
                           "final/model.safetensors", "checkpoints/latest", "checkpoints/step-000003/manifest.json",
                           "checkpoints/step-000006/manifest.json"})
    EXPECT_TRUE(std::filesystem::exists(scratch_ / (std::string("out/") + name))) << name;
  EXPECT_EQ(losses("out").size(), 6u);
  const Outcome again =
      test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "check", "out/resolved.toml"}, scratch_.path());
  EXPECT_EQ(again.exit_code, 0) << "the resolved configuration is valid: " << again.output;
}

TEST_F(RunTest, CountsRowsBeyondThePositionsThatTheModelWasMadeFor) {
  const std::string model =
      "model.config={hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, "
      "vocab_size=259, max_position_embeddings=";
  const Outcome longer = train({model + "15}", "run.max_steps=1"});
  EXPECT_EQ(longer.exit_code, 0) << longer.output;
  EXPECT_HAS(longer.output, "train.seq_len = 16, but the weights of model 'llama' were made for 15 positions");
  const Outcome fits = train({model + "16}", "run.max_steps=1", "run.output_dir=other"});
  EXPECT_EQ(fits.output.find("positions"), std::string::npos) << fits.output;
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

TEST_F(RunTest, AFinishedRunIsRefusedAndNotChanged) {
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

TEST_F(RunTest, AMissingExportIsMadeByTheNextStart) {
  ASSERT_EQ(train().exit_code, 0);
  const std::string weights = model("out");
  std::filesystem::remove_all(scratch_ / "out/final");
  const Outcome again = train();
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_TRUE(model("out") == weights);
  EXPECT_EQ(losses("out").size(), 6u);
}

TEST_F(RunTest, MetricsHoldEveryStepEvenIfTheConsolePrintsFew) {
  const Outcome run = train({"log.every_steps=5"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(losses("out").size(), 6u);
  for (const char* line : {"step 1/6", "step 5/6", "step 6/6"}) EXPECT_HAS(run.output, line);
  EXPECT_EQ(run.output.find("step 2/6"), std::string::npos);
}

TEST_F(RunTest, TheFirstLinesNameDataAndResultsAndTheLastTheNextCommand) {
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

TEST_F(RunTest, ALengthThatDoesNotFitTheScheduleOrTheDataIsAWarning) {
  const Outcome warm =
      train({"run.max_steps=0", "run.epochs=0.01", "schedule.warmup_steps=1000", "sample.every_steps=2"});
  ASSERT_EQ(warm.exit_code, 0) << warm.output;
  EXPECT_HAS(warm.output, "warning: schedule.warmup_steps = 1000 is more than the ");
  EXPECT_HAS(warm.output, "warning: sample.every_steps = 2 has no effect, since there are no sample.prompts");
  EXPECT_HAS(warm.output, "; raise run.epochs to train further");
  const Outcome zero = train({"run.output_dir=zero", "run.max_steps=1", "schedule.name=linear"});
  ASSERT_EQ(zero.exit_code, 0) << zero.output;
  EXPECT_HAS(zero.output,
             "warning: schedule.min_lr_ratio = 0: the schedule \"linear\" ends at the rate 0, and the only");
  const Outcome large = train({"run.output_dir=large", "run.max_steps=1", "train.global_batch_size=2000",
                               "--plugin-path", CHASSIS_TEST_STUB_DIR});
  ASSERT_EQ(large.exit_code, 0) << large.output;
  EXPECT_HAS(large.output,
             "warning: train.global_batch_size: a step takes 2000 rows of 16 tokens, and the data fills ");
  EXPECT_HAS(large.output, "large/resolved.toml --plugin-path ") << "plugins of the next command";
}

TEST_F(RunTest, ASetThatIsNotReachedIsAWarningAndTheSummaryHasTheRowsOfEachSet) {
  test::write_text(scratch_ / "small.txt", std::string(400, 'x') + "\n");
  std::string toml = test::text_of_file(scratch_ / "run.toml");
  const std::string set = "path = \"corpus.txt\"\n";
  toml.replace(toml.find(set), set.size(),
               set + "weight = 1.0\n[[data.train]]\npath = \"small.txt\"\nweight = 0.000001\n");
  test::write_text(scratch_ / "run.toml", toml);
  const Outcome run = train({"run.max_steps=2"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const size_t warned = run.output.find("warning: data.train.1 (small.txt) is not trained: its share of the rows");
  EXPECT_LT(warned, run.output.find("step 1")) << run.output;
  EXPECT_HAS(run.output, "and the run takes 8 rows of all sets");
  EXPECT_HAS(run.output, "rows taken: data.train.0 (corpus.txt) 8 (");
  EXPECT_HAS(run.output, ", data.train.1 (small.txt) 0 (0 epochs)");
  EXPECT_HAS(run.output, "warning: data.not_reached data.train.1 (once)");
}

TEST_F(RunTest, MoreStepsThanInt64HoldsAreRefused) {
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

TEST_F(RunTest, ParametersThatAreNotFiniteAreNeitherSavedNorExported) {
  const Outcome run = train({"optimizer.lr=1e38", "run.max_steps=1"});
  EXPECT_EQ(run.exit_code, 6) << run.output;
  EXPECT_HAS(run.output, "the parameters after step 1 are not finite");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out/final"));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out/checkpoints/step-000001"));
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
  EXPECT_EQ(losses("out").size(), 1u) << "the run stays as it was";
}

TEST_F(RunTest, StartingAnewIsRefusedIfThereAreCheckpoints) {
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

// Otherwise a socket may take the number of a closed descriptor, and output goes there.
TEST_F(RunTest, ClosedStandardDescriptorsAreReplaced) {
  const std::string program = CHASSIS_TEST_BINARY_DIR "/bin/chassis";
  Process run({"/bin/sh", "-c", "echo $$ > pid; exec " + program + " train run.toml run.max_steps=100000 <&- >&- 2>&-"},
              scratch_.path());
  for (int i = 0; i < 6000 && run.running() && test::text_of_file(scratch_ / "out/metrics.jsonl").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::string process = test::text_of_file(scratch_ / "pid");
  process.pop_back();
  const auto leads_to = [&](const char* descriptor) {
    return std::filesystem::read_symlink("/proc/" + process + "/fd/" + descriptor).string();
  };
  EXPECT_EQ(leads_to("0"), "/dev/null");
  EXPECT_TRUE(leads_to("1").starts_with("pipe:")) << "what plugins print is read by the program: " << leads_to("1");
  EXPECT_EQ(leads_to("2"), "/dev/null");
  run.send(SIGTERM);
  EXPECT_EQ(run.wait().exit_code, 75);
}

// Holds the lock of the only set in the cache, as a process that prepares it does.
class HeldCache {
 public:
  explicit HeldCache(const std::string& cache) {
    for (const auto& entry : std::filesystem::directory_iterator(cache))
      if (entry.path().extension() == ".lock") file_ = File::open_write(entry.path());
    EXPECT_TRUE(file_.is_open());
    EXPECT_EQ(flock(file_.descriptor(), LOCK_EX), 0);
  }

 private:
  File file_;
};

TEST_F(RunTest, AStopSignalWorksWhileAnotherProcessPreparesTheData) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  const HeldCache held(scratch_ / "cache");
  for (int number : {SIGTERM, SIGINT}) {
    Process run(command({"run.output_dir=other"}), scratch_.path());
    ASSERT_TRUE(run.wait_for("corpus.txt: waiting for process ")) << run.output_so_far();
    run.send(number);
    const Outcome stopped = run.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
    EXPECT_HAS(stopped.output, "stopped while preparing data");
    std::filesystem::remove(scratch_ / "output.txt");  // wait_for must not match the output of the previous run
  }
}

TEST_F(RunTest, ChangedTokensInTheCacheAreNotTrained) {
  ASSERT_EQ(train({"run.output_dir=a"}).exit_code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "cache")) {
    if (!entry.is_directory()) continue;
    File ids = File::open_write(entry.path() / "ids.bin");
    std::string others;  // valid ids of two bytes, which would be trained
    while (others.size() < ids.size()) others += std::string("\7\0", 2);
    ids.pwrite_exact(others.data(), others.size(), 0);
  }
  const Outcome again = train({"run.output_dir=b"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_HAS(again.output, "ids.bin: its bytes have changed");
  expect_same_run("a", "b");
}

// A model directory with a tokenizer, and a configuration that starts from it with the tokenizer "bytes".
class RunFromModel : public RunTest {
 protected:
  RunFromModel() {
    EXPECT_EQ(train({"run.max_steps=1"}).exit_code, 0);
    std::filesystem::rename(scratch_ / "out/final", scratch_ / "hub");
    std::filesystem::remove_all(scratch_ / "out");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"})
      test::write_text(scratch_ / (std::string("hub/") + name), "{}");
    std::string toml = test::text_of_file(scratch_ / "run.toml");
    const size_t model = toml.find("[model]"), tokenizer = toml.find("[tokenizer]");
    toml.replace(model, tokenizer - model, "[model]\npath = \"hub\"\n");
    test::write_text(scratch_ / "run.toml", toml);
  }
  bool exported(const std::string& name) const { return std::filesystem::exists(scratch_ / ("out/final/" + name)); }
};

TEST_F(RunFromModel, AnotherTokenizerThanTheModelsIsRefused) {
  test::write_text(scratch_ / "run.toml",
                   test::text_of_file(scratch_ / "run.toml") + "[[data.eval]]\npath = \"corpus.txt\"\n");
  for (const char* verb : {"train", "check", "eval", "generate"}) {
    Words words = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", verb, "run.toml"};
    if (verb == std::string("generate")) words.insert(words.end(), {"--prompt", "a"});
    const Outcome run = test::run_process(words, scratch_.path());
    EXPECT_EQ(run.exit_code, 2) << verb << run.output;
    EXPECT_HAS(run.output, "run.toml:8:");
    EXPECT_HAS(run.output, "tokenizer 'bytes' is not the one that hub contains (tokenizer.json, tokenizer_config.json");
    EXPECT_HAS(run.output, "tokenizer.force = true");
  }
}

TEST_F(RunFromModel, AForcedTokenizerIsReportedAndTheModelsIsNotExported) {
  const Outcome run = train({"tokenizer.force=true"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "warning: tokenizer 'bytes' is not the one that hub contains");
  EXPECT_HAS(run.output, "the export leaves out the tokenizer of hub");
  EXPECT_FALSE(exported("tokenizer.json"));
  EXPECT_FALSE(exported("tokenizer_config.json"));
  EXPECT_TRUE(exported("generation_config.json"));
}

TEST_F(RunFromModel, ARunOnTokensExportsTheModelsTokenizer) {
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
  test::write_text(scratch_ / "rows.jsonl", rows);
  std::string toml = test::text_of_file(scratch_ / "run.toml");
  toml.replace(toml.find("[tokenizer]\nplugin = \"bytes\"\n"), 28, "");
  toml.replace(toml.find("\"corpus.txt\""), 12, "\"rows.jsonl\"\nformat = \"tokens\"");
  test::write_text(scratch_ / "run.toml", toml);
  const Outcome run = train();
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_TRUE(exported("tokenizer.json"));
}

TEST_F(RunFromModel, ATokenizerThatReadsTheModelsOwnFilesIsItsOwn) {
  const Words overrides = {"tokenizer.plugin=from_file", "--plugin-path", CHASSIS_TEST_STUB_DIR};
  EXPECT_EQ(train(overrides).exit_code, 2);
  Words reading = overrides;
  reading.insert(reading.begin(), "tokenizer.file=hub/tokenizer.json");
  const Outcome run = train(reading);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_TRUE(exported("tokenizer.json"));
}

// After an interrupt at any moment the next start resumes, and the results are those of an uninterrupted run.
TEST_F(RunTest, CanBeInterruptedAtAnyMoment) {
  const Words whole = {"run.output_dir=whole", "run.max_steps=300", "checkpoint.every_steps=0"};
  ASSERT_EQ(train(whole).exit_code, 0);
  const Words parts = {"run.output_dir=parts", "run.max_steps=300", "checkpoint.every_steps=70"};
  std::mt19937 random(std::random_device{}());
  int stopped = 0, killed = 0;
  for (int round = 0; round < 5; ++round) {
    const int number = round % 2 ? SIGINT : SIGTERM;
    const bool starting = round < 2;  // later runs are interrupted while they train
    const int delay_ms = static_cast<int>(random() % (starting ? 700 : 100));
    Process run(command(parts), scratch_.path());
    EXPECT_TRUE(starting || run.wait_for(" steps of ")) << run.output_so_far();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    run.send(number);
    const Outcome outcome = run.wait();
    // 0: it had finished; 75: it stopped; 128 + n: it was not running yet.
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 75 || outcome.exit_code == 128 + number)
        << "after " << delay_ms << " ms: " << outcome.exit_code << "\n"
        << outcome.output;
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
