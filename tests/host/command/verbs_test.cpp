// Output of each command for a valid configuration.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>

#include "chassis/abi.h"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::ScratchDirectory;

class Verbs : public testing::Test {
 protected:
  Verbs() {
    std::filesystem::copy(CHASSIS_TEST_SOURCE_DIR "/tests/golden/run/base", scratch_.path(),
                          std::filesystem::copy_options::recursive);
  }
  Outcome chassis(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
    return test::run_process(words, scratch_.path());
  }
  ScratchDirectory scratch_;
};

TEST_F(Verbs, CheckProvesAConfigurationInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome check = chassis({"check", "good.toml"});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(check.exit_code, 0) << check.output;
  EXPECT_HAS(check.output, "model       4 units");
  EXPECT_HAS(check.output, "ok          good.toml");
  EXPECT_LT(seconds, 10.0);  // 0.4 s on an idle machine; a busy one takes longer
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out")) << "it writes nothing";
}

TEST_F(Verbs, LostOutputIsAnErrorOfEveryVerb) {
  ASSERT_EQ(chassis({"train", "good.toml"}).exit_code, 0);
  const auto shell = [&](const std::string& line) {
    return test::run_process({"/bin/bash", "-c", line}, scratch_.path(),
                             {{"CHASSIS", CHASSIS_TEST_BINARY_DIR "/bin/chassis"}});
  };
  for (const char* words : {"schema", "version", "--help", "check good.toml", "plugins list", "ckpt ls out",
                            "generate good.toml --prompt Row generate.max_new_tokens=2"}) {
    const Outcome lost = shell(std::string("exec \"$CHASSIS\" ") + words + " > /dev/full");
    EXPECT_EQ(lost.exit_code, 7) << words << ": " << lost.output;
    EXPECT_HAS(lost.output, "standard output cannot be written");
  }
  const Outcome left = shell("set -o pipefail; { sleep 0.2; \"$CHASSIS\" schema; } | true");
  EXPECT_EQ(left.exit_code, 0) << "a reader that stops early is no error: " << left.output;
}

TEST_F(Verbs, ASignalWhileTheProgramIsLoadedIsAnswered) {
  // The signal arrives before the program starts, and waits.
  const std::string line = "kill -TERM $$; exec " CHASSIS_TEST_BINARY_DIR "/bin/chassis version";
  const Outcome ended =
      test::run_process({"/usr/bin/env", "--block-signal=TERM", "/bin/sh", "-c", line}, scratch_.path());
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.output;
  EXPECT_EQ(ended.output, "\nSIGTERM: ended at once\n");
}

TEST_F(Verbs, CheckShowsTheGraphAndTheOriginOfEveryKey) {
  const Outcome check = chassis({"check", "good.toml", "--graph", "--resolved", "train.seq_len=8"});
  EXPECT_EQ(check.exit_code, 0) << check.output;
  EXPECT_HAS(check.output, "block layer (chain layers, 2 units)");
  EXPECT_HAS(check.output, "attention");
  EXPECT_HAS(check.output, "naive");
  EXPECT_HAS(check.output, "[B=2, T=8, heads=2, head_dim=8]");
  EXPECT_HAS(check.output, "seq_len = 8");
  EXPECT_HAS(check.output, "command line");
  EXPECT_HAS(check.output, "model.toml:");
}

TEST_F(Verbs, GenerateEvalAndCkptReadTheOutputOfTrain) {
  ASSERT_EQ(chassis({"train", "good.toml"}).exit_code, 0);
  const Outcome greedy = chassis({"generate", "good.toml", "--prompt", "Row 1", "generate.max_new_tokens=12"});
  EXPECT_EQ(greedy.exit_code, 0) << greedy.output;
  EXPECT_HAS(greedy.output, "Row 1");
  const Outcome uncached =
      chassis({"generate", "good.toml", "--prompt", "Row 1", "--no-cache", "generate.max_new_tokens=12"});
  EXPECT_EQ(uncached.output, greedy.output);
  const Outcome drawn =
      chassis({"generate", "good.toml", "--prompt", "Row 1", "generate.max_new_tokens=12", "generate.temperature=1.0"});
  EXPECT_NE(drawn.output, greedy.output);
  EXPECT_EQ(
      chassis({"generate", "good.toml", "--prompt", "Row 1", "generate.max_new_tokens=12", "generate.temperature=1.0"})
          .output,
      drawn.output)
      << "one seed draws one text";
  const Outcome from =
      chassis({"generate", "good.toml", "--prompt", "Row 1", "--from", "out/final", "generate.max_new_tokens=12"});
  EXPECT_EQ(from.exit_code, 0) << from.output;

  // Refused before the weights are looked for.
  const Outcome stop = chassis({"generate", "good.toml", "--prompt", "Row 1", "--stop", "", "--from", "nowhere"});
  EXPECT_HAS(stop.output, "has an empty text");
  EXPECT_EQ(stop.output.find("Row 1"), std::string::npos);
  EXPECT_HAS(chassis({"generate", "good.toml", "--prompt", "\xff", "--from", "nowhere"}).output,
             "--prompt is not UTF-8");

  test::write_text(scratch_ / "eval.toml", "extends = [\"good.toml\"]\n[[data.eval]]\npath = \"corpus.txt\"\n");
  const Outcome eval = chassis({"eval", "eval.toml"});
  EXPECT_EQ(eval.exit_code, 0) << eval.output;
  EXPECT_HAS(eval.output, "eval loss 5.");
  EXPECT_HAS(eval.output, "perplexity");

  const Outcome list = chassis({"ckpt", "ls", "out"});
  EXPECT_EQ(list.exit_code, 0) << list.output;
  EXPECT_HAS(list.output, "step-000001");
  const Outcome verify = chassis({"ckpt", "verify", "out"});
  EXPECT_EQ(verify.exit_code, 0) << verify.output;
  EXPECT_HAS(verify.output, "ok out/checkpoints/step-000001");
}

TEST_F(Verbs, EvalAndGenerateOfAModelDirectoryNeedNoTrainingKeys) {
  ASSERT_EQ(chassis({"train", "model.toml"}).exit_code, 0);
  const std::string model = "[model]\npath = \"model-run/final\"\n";
  const std::string tokenizer = "[tokenizer]\nplugin = \"bytes\"\n";

  test::write_text(scratch_ / "generate.toml", model + tokenizer);
  const Outcome text = chassis({"generate", "generate.toml", "--prompt", "Row 1", "generate.max_new_tokens=3"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_HAS(text.output, "Row 1");

  test::write_text(scratch_ / "eval.toml",
                   model + tokenizer + "[train]\nseq_len = 16\n[[data.eval]]\npath = \"corpus.txt\"\n");
  const Outcome eval = chassis({"eval", "eval.toml"});
  EXPECT_EQ(eval.exit_code, 0) << eval.output;
  EXPECT_HAS(eval.output, "eval loss 5.");

  const Outcome refused = chassis({"train", "eval.toml"});
  EXPECT_EQ(refused.exit_code, 2);
  for (const char* missing : {"optimizer.lr", "run.max_steps", "[[data.train]]"}) EXPECT_HAS(refused.output, missing);
  const Outcome checked = chassis({"eval", "eval.toml", "optimizer.lr=-1", "optimizer.beta=0.9"});
  EXPECT_EQ(checked.exit_code, 2);
  for (const char* given : {"optimizer.lr = -1", "unknown key 'optimizer.beta'"}) EXPECT_HAS(checked.output, given);
}

TEST_F(Verbs, CheckEvalAndGenerateCountPositionsBeyondThoseOfTheModel) {
  ASSERT_EQ(chassis({"train", "model.toml", "model.config.max_position_embeddings=15"}).exit_code, 0);
  test::write_text(scratch_ / "use.toml",
                   "[model]\npath = \"model-run/final\"\n[tokenizer]\nplugin = \"bytes\"\n"
                   "[train]\nseq_len = 16\n[[data.eval]]\npath = \"corpus.txt\"\n");
  const std::string most = ", but the weights of model 'llama' were made for 15 positions (max_position_embeddings)";
  const Outcome check = chassis({"check", "model.toml", "model.config.max_position_embeddings=15"});
  EXPECT_EQ(check.exit_code, 0) << check.output;
  EXPECT_HAS(check.output, "train.seq_len = 16" + most);
  const Outcome eval = chassis({"eval", "use.toml"});
  EXPECT_EQ(eval.exit_code, 0) << eval.output;
  EXPECT_HAS(eval.output, "train.seq_len = 16" + most);
  const Outcome text = chassis({"generate", "use.toml", "--prompt", "Row 1", "generate.max_new_tokens=12"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_HAS(text.output, "tokens of the prompt + generate.max_new_tokens = 18" + most);
}

// In other families such lengths only count a warning.
TEST_F(Verbs, RefuseMorePositionsThanATableHas) {
  const auto toml = [](int positions, int seq_len) {
    return "schema_version = 1\n[run]\noutput_dir = \"table\"\nmax_steps = 1\n[model]\nplugin = \"gpt2\"\n"
           "config = { vocab_size = 259, n_embd = 16, n_layer = 1, n_head = 2, n_positions = " +
           std::to_string(positions) +
           " }\n[tokenizer]\nplugin = \"bytes\"\n[[data.train]]\npath = \"corpus.txt\"\n"
           "[[data.eval]]\npath = \"corpus.txt\"\n[train]\nmicro_batch_size = 1\nglobal_batch_size = 1\nseq_len = " +
           std::to_string(seq_len) + "\n[optimizer]\nlr = 1e-3\n[attention]\nplugin = \"naive\"\n";
  };
  test::write_text(scratch_ / "long.toml", toml(15, 16));
  for (const char* verb : {"check", "train"}) {
    const Outcome run = chassis({verb, "long.toml"});
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_HAS(run.output, "train.seq_len = 16, but model 'gpt2' has a table of 15 positions");
  }
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "table"));
  test::write_text(scratch_ / "fits.toml", toml(16, 16));
  ASSERT_EQ(chassis({"train", "fits.toml"}).exit_code, 0);
  const Outcome eval = chassis({"eval", "fits.toml", "train.seq_len=17"});
  EXPECT_EQ(eval.exit_code, 2) << eval.output;
  const Outcome cut = chassis({"generate", "fits.toml", "--prompt", "Row 1", "generate.max_new_tokens=40"});
  EXPECT_EQ(cut.exit_code, 0) << cut.output;
  EXPECT_HAS(cut.output, "has a table of 16 positions: an answer has at most 11 tokens");
  const Outcome prompt = chassis({"generate", "fits.toml", "--prompt", "a prompt of 22 letters"});
  EXPECT_EQ(prompt.exit_code, 2) << prompt.output;
  EXPECT_HAS(prompt.output, "has a table of 16 positions");
}

TEST_F(Verbs, PluginsCheckTestsTheResultsOfPlugins) {
  for (const char* plugin : {"adamw", "safetensors", "naive"}) {
    const std::string file = std::string(CHASSIS_TEST_PLUGIN_DIR "/") + plugin + ".so";
    const Outcome check = chassis({"plugins", "check", file, "--only", "numerics"});
    EXPECT_EQ(check.exit_code, 0) << check.output;
    EXPECT_HAS(check.output, "conforms: 3 passed");
  }
}

TEST_F(Verbs, SchemaPluginsAndVersionNeedNoConfiguration) {
  const Outcome schema = chassis({"schema", "optimizer"});
  EXPECT_EQ(schema.exit_code, 0);
  for (const char* key : {"lr", "weight_decay", "betas", "eps"}) EXPECT_HAS(schema.output, key);
  const Outcome list = chassis({"plugins", "list"});
  EXPECT_EQ(list.exit_code, 0);
  for (const char* name : {"llama", "reference", "adamw", "bytes", "safetensors", "naive"})
    EXPECT_HAS(list.output, name);
  const Outcome info = chassis({"plugins", "info", "adamw"});
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_HAS(info.output, "license");
  EXPECT_EQ(info.output.find("betas"), std::string::npos) << "it was loaded";
  EXPECT_HAS(chassis({"plugins", "info", "adamw", "--options"}).output, "betas");
  const Outcome version = chassis({"version"});
  EXPECT_HAS(version.output, "ABI " + std::to_string(CHASSIS_ABI_MAJOR) + "." + std::to_string(CHASSIS_ABI_MINOR));
  EXPECT_HAS(version.output, "LibTorch 2.");
  EXPECT_HAS(version.output, "devices: the CPU; CUDA (");
  EXPECT_HAS(version.output, "docs/gpu.md");
  EXPECT_EQ(chassis({"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace chassis
