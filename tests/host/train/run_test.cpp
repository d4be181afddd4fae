// Whole runs of the program: what it leaves behind, and how it is stopped and resumed.
#include <gtest/gtest.h>

#include <random>

#include "host/base/json.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::Process;
using test::ScratchDirectory;
using Words = std::vector<std::string>;

const char* kConfig = R"(schema_version = 1
[run]
output_dir = "out"
max_steps = 6
[model]
plugin = "llama"
config = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 32, vocab_size = 259 }
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "corpus.txt"
[data]
cache_dir = "cache"
[train]
seq_len = 16
micro_batch_size = 2
global_batch_size = 4
[attention]
plugin = "naive"
[kernels]
plugins = ["reference"]
[optimizer]
plugin = "adamw"
lr = 1e-2
)";

class RunTest : public testing::Test {
 protected:
  RunTest() {
    test::write_text(scratch_ / "run.toml", kConfig);
    std::string corpus;
    for (int i = 0; i < 400; ++i) corpus += "line " + std::to_string(i * 37 % 101) + " of a small corpus\n";
    test::write_text(scratch_ / "corpus.txt", corpus);
  }
  static Words command(const Words& overrides) {
    Words words = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "train", "run.toml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }
  Outcome train(const Words& overrides = {}) { return test::run_process(command(overrides), scratch_.path()); }

  std::vector<Json> metrics(const std::string& out) {
    std::vector<Json> lines;
    std::istringstream text(test::text_of_file(scratch_ / (out + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  std::vector<double> losses(const std::string& out) {
    std::vector<double> values;
    for (const Json& line : metrics(out)) {
      EXPECT_EQ(line["step"].get<size_t>(), values.size() + 1);
      values.push_back(line["loss"].get<double>());
    }
    return values;
  }
  std::string model(const std::string& out) { return test::text_of_file(scratch_ / (out + "/final/model.safetensors")); }
  void expect_same_run(const std::string& a, const std::string& b) {
    EXPECT_EQ(losses(a), losses(b));
    EXPECT_FALSE(model(a).empty());
    EXPECT_TRUE(model(a) == model(b)) << "the models differ";
  }

  ScratchDirectory scratch_;
};

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

TEST_F(RunTest, RefusesWhatNoMachineHoldsBeforeItWritesAByte) {
  const Outcome run = train({"model.config={hidden_size=65536, num_hidden_layers=80, num_attention_heads=512, "
                             "intermediate_size=262144, vocab_size=259}"});
  EXPECT_EQ(run.exit_code, 4) << run.output;
  EXPECT_HAS(run.output, "the run does not fit: rank 0 on ");
  EXPECT_HAS(run.output, "TiB are planned at the peak, there are ");
  EXPECT_HAS(run.output, "run.memory_check = \"warn\" tries it nevertheless");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out"));
}

TEST_F(RunTest, CountsRowsBeyondThePositionsThatTheModelWasMadeFor) {
  const std::string model = "model.config={hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, "
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

TEST_F(RunTest, AFinishedRunIsLeftAsItIs) {
  ASSERT_EQ(train().exit_code, 0);
  const auto before = losses("out");
  const std::string weights = model("out");
  const Outcome again = train();
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(losses("out"), before);
  EXPECT_TRUE(model("out") == weights);
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
  for (int number : {SIGTERM, SIGINT}) {
    const std::string out = number == SIGTERM ? "run.output_dir=term" : "run.output_dir=int";
    Process run(command({out, "run.max_steps=100000"}), scratch_.path());
    ASSERT_TRUE(run.wait_for("step 3/")) << run.output_so_far();
    run.send(number);
    const Outcome stopped = run.wait();
    EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
    EXPECT_HAS(stopped.output, number == SIGTERM ? "SIGTERM at step" : "SIGINT at step");
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
