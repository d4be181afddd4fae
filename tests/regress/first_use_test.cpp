// Answers of the program to mistakes that first-time users make: flags, paths, names, settings, terminals.
#include <sys/stat.h>

#include <cstdio>

#include "tests/support/program_run.hpp"

namespace chassis::test {
namespace {

class FirstUse : public ProgramRun {
 protected:
  Outcome check(const Words& words) {
    Words command = {program(), "check"};
    command.insert(command.end(), words.begin(), words.end());
    return run_process(command, scratch_.path());
  }
  // Expects this exit code and text from a check of run.toml with these overrides.
  void expect_refusal(const Words& overrides, int exit_code, const std::string& words) {
    Words all = {"run.toml"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Outcome run = check(all);
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    EXPECT_HAS(run.output, words);
  }
};

TEST_F(FirstUse, AClosedStandardOutputIsAnError) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  for (const char* words : {"check run.toml", "plan run.toml --json", "schema", "version", "help", "ckpt ls out",
                            "plugins list", "generate run.toml --prompt a generate.max_new_tokens=2"}) {
    const Outcome run = shell("\"$CHASSIS\" " + std::string(words) + " >&-");
    EXPECT_EQ(run.exit_code, 7) << words << "\n" << run.output;
    EXPECT_HAS(run.output, "standard output is closed");
  }
  EXPECT_EQ(shell("\"$CHASSIS\" schema > /dev/full").exit_code, 7);
  EXPECT_EQ(shell("\"$CHASSIS\" train run.toml run.max_steps=2 >&-").exit_code, 0);  // train does not print there
}

TEST_F(FirstUse, CheckFindsDataThatCannotBeReadAndFoldersThatCannotBeWritten) {
  write_text(scratch_ / "file", "");
  expect_refusal({"data.cache_dir=file/cache"}, 7, "data.cache_dir = \"file/cache\": ");
  expect_refusal({"run.output_dir=file"}, 7, "run.output_dir = \"file\": " + scratch_ / "file is not a folder");
  if (geteuid() != 0) return;
  // Root may read and write everything, so the rest runs as the user nobody.
  const std::string as_nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups \"$CHASSIS\" check run.toml";
  chmod(scratch_.path().c_str(), 0755);
  if (shell("setpriv --reuid=65534 --regid=65534 --clear-groups \"$CHASSIS\" version").exit_code != 0) return;
  const Outcome folder = shell(as_nobody);
  EXPECT_EQ(folder.exit_code, 7) << folder.output;
  EXPECT_HAS(folder.output, "cannot write into " + scratch_.path());
  chmod((scratch_ / "corpus.txt").c_str(), 0600);
  const Outcome file = shell(as_nobody);
  EXPECT_EQ(file.exit_code, 2) << file.output;
  EXPECT_HAS(file.output, "run.toml:11:8: data.train.0: ");
  EXPECT_HAS(file.output, "Permission denied");
  EXPECT_EQ(shell(as_nobody + " --without-data").exit_code, 0);
}

TEST_F(FirstUse, OutputFoldersThatCannotHoldARunAreRefused) {
  expect_refusal({"run.output_dir="}, 2, "run.output_dir is empty: expected a path");
  expect_refusal({"run.output_dir=/"}, 2, "run.output_dir = \"/\" cannot hold files of a run: it is the root");
  for (const char* folder : {"/dev", "/dev/", "/dev/../proc/run", "/sys/run"})
    expect_refusal({"run.output_dir=" + std::string(folder)}, 2, " belongs to the system");
  expect_refusal({"data.cache_dir=/proc"}, 2, "/proc/ belongs to the system");
  expect_refusal({"run.output_dir=/dev/shm/chassis"}, 0, "ok ");
}

TEST_F(FirstUse, ATildeIsTheHomeFolder) {
  const auto at_home = [&](const std::string& words) {
    return shell("HOME=\"$PWD\" \"$CHASSIS\" check run.toml --resolved " + words);
  };
  const Outcome run = at_home("'data.train.0.path=~/corpus.txt' 'run.output_dir=~'");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "path = \"" + scratch_ / "corpus.txt\"");
  EXPECT_HAS(run.output, "# relative paths start at " + scratch_.path());
  EXPECT_HAS(at_home("'data.train.0.path=~bob/corpus.txt'").output, "only \"~/\" is expanded, to your own home folder");
  write_text(scratch_ / "more.toml", "extends = [\"~/run.toml\"]\n");
  EXPECT_EQ(shell("HOME=\"$PWD\" \"$CHASSIS\" check more.toml").exit_code, 0);
  EXPECT_HAS(shell("HOME= \"$CHASSIS\" check more.toml").output, "more.toml:1:12: extends \"~/run.toml\": ");
}

TEST_F(FirstUse, FlagsAreAnsweredWithOverrides) {
  expect_refusal({"--lr", "1e-3"}, 2, "after the file: optimizer.lr=1e-3");
  expect_refusal({"--optimizer.lr=1e-3"}, 2, "after the file: optimizer.lr=1e-3");
  expect_refusal({"--data.train.0.path", "x.txt"}, 2, "after the file: data.train.0.path=x.txt");
  expect_refusal({"--dtype", "bfloat16"}, 2, "use precision.compute");
  expect_refusal({"--learning-rate", "1"}, 2, "learning_rate of HF Trainer: use optimizer.lr");
  expect_refusal({"--frobnicate"}, 2, "key=value; chassis schema lists them; options: chassis help check");
  const Outcome before = check({"run.max_steps=5", "optimizer.lr=0.5", "run.toml", "--resolved", "run.max_steps=7"});
  EXPECT_EQ(before.exit_code, 0) << before.output;
  EXPECT_HAS(before.output, "max_steps = 7");
  EXPECT_HAS(before.output, "lr = 0.5");
  EXPECT_HAS(check({"run.max_steps=5"}).output, "no configuration file is given, only 'run.max_steps=5'");
}

TEST_F(FirstUse, NamesThatAreNearlyRightGetAHint) {
  expect_refusal({"attention=naive"}, 2, "write attention.plugin=naive");
  expect_refusal({"kernels=naive"}, 2, "write kernels.plugins=naive");
  write_text(scratch_ / "slot.toml", "extends = [\"run.toml\"]\nattention = \"sdpa\"\n");
  EXPECT_HAS(check({"slot.toml"}).output,
             "slot.toml:2:1: attention must be a table, not a string (\"sdpa\"): write "
             "attention.plugin = \"sdpa\"");
  expect_refusal({"schedule.type=linear"}, 2, "use schedule.name");
  expect_refusal({"data.train.0.path=*.text"}, 2, "no file matches");
  EXPECT_HAS(shell("CUDA_VISIBLE_DEVICES= \"$CHASSIS\" train run.toml run.device=cuda").output,
             "command line 'run.device=cuda': run.device = \"cuda\": ");
  expect_refusal({"attention.plugin=bytes"}, 3, "command line 'attention.plugin=bytes': ");
  expect_refusal({"attention.plugin=reference"}, 3,
                 "command line 'attention.plugin=reference': no provider computes attention");
  const Outcome typo = check({"run.toml", "model.config.hiden_size=3"});
  EXPECT_HAS(typo.output, "key 'hiden_size' is unknown to model 'llama' (did you mean 'hidden_size'?)");
}

TEST_F(FirstUse, VeryLongNamesAreShortened) {
  const std::string name(100'000, 'x');
  for (const Words& words : {Words{"run.toml", "optimizer.plugin=" + name},
                             {"run.toml", name + "=1"},
                             {name},
                             {"run.toml", "--" + name},
                             {"run.toml", "run.device=" + name}}) {
    const Outcome run = check(words);
    EXPECT_NE(run.exit_code, 0);
    EXPECT_LT(run.output.size(), 4000u) << run.output.substr(0, 200);
  }
}

TEST_F(FirstUse, TheResolvedConfigurationOfEveryStrategyIsAccepted) {
  for (const char* strategy : {"plugin=ddp", "plugin=fsdp2", "plugin=zero parallel.0.stage=2", "plugin=zero"}) {
    const Outcome outcome = shell(std::string("\"$CHASSIS\" check run.toml --resolved parallel.0.") + strategy +
                                  " | sed '/^model  /,$d' > resolved.toml && \"$CHASSIS\" check resolved.toml");
    EXPECT_EQ(outcome.exit_code, 0) << strategy << "\n" << outcome.output;
  }
}

TEST_F(FirstUse, LikelyMistakesGetAWarning) {
  EXPECT_HAS(check({"run.toml", "optimizer.lr=3e3"}).output, "optimizer.lr = 3000 is far above usual rates");
  EXPECT_HAS(check({"run.toml", "optimizer.lr=0"}).output, "optimizer.lr = 0 trains nothing");
  const Outcome whole = check({"run.toml"});
  EXPECT_EQ(whole.output.find("warning"), std::string::npos) << whole.output;
  const Outcome preset = check({"run.toml",
                                "model.config={ hidden_size = 16, num_attention_heads = 2, "
                                "intermediate_size = 32, vocab_size = 259 }"});
  EXPECT_HAS(preset.output, "uses its defaults: num_hidden_layers = 32\n");
}

TEST_F(FirstUse, ARunNamesItsTokenCacheAndReportsThatItExportsNoTokenizer) {
  const Outcome first = train({"run.max_steps=1"});
  EXPECT_HAS(first.output, "corpus.txt: its tokens are kept in cache/corpus.txt-");
  EXPECT_HAS(first.output, "final/ (the model; no tokenizer files, since 'bytes' has none)");
  EXPECT_EQ(train({"run.output_dir=again", "run.max_steps=1"}).output.find("are kept in"), std::string::npos);
  const Outcome evaluation = run_process({program(), "eval", "run.toml"}, scratch_.path());
  EXPECT_HAS(evaluation.output, "or data.eval.0.path=FILE on the command line");
  const Outcome resumed = train({"run.resume=out/final", "run.max_steps=9", "run.output_dir=b"});
  EXPECT_HAS(resumed.output, "out/final holds only weights and cannot be resumed\nhint: start from it instead");
}

TEST_F(FirstUse, ARefusedResumeNamesTheDifferences) {
  ASSERT_EQ(train().exit_code, 0);
  const Outcome optimizer = train({"optimizer.plugin=sgd", "run.max_steps=8"});
  EXPECT_EQ(optimizer.exit_code, 2) << optimizer.output;
  EXPECT_HAS(optimizer.output, "optimizer.plugin was \"adamw\", is \"sgd\": it cannot use the states in ");
  const Outcome model = train({"model.config.hidden_size=32", "run.max_steps=8"});
  EXPECT_EQ(model.exit_code, 2) << model.output;
  EXPECT_HAS(model.output, "\n  model.config.hidden_size was 16, is 32\n");
  write_text(scratch_ / "corpus.txt", text_of_file(scratch_ / "corpus.txt") + "one more line\n");
  const Outcome data = train({"run.max_steps=8"});
  EXPECT_EQ(data.exit_code, 2) << data.output;
  EXPECT_HAS(data.output, "no setting differs:\n  corpus.txt had content \"");
  EXPECT_HAS(data.output, "model.path = \"out/final\" starts from its weights with other data");
}

// Nothing else would report that the weights are used with another configuration.
TEST_F(FirstUse, AChangedConfigOfTheBaseModelIsReported) {
  ASSERT_EQ(train({"run.output_dir=base"}).exit_code, 0);
  const std::string text = text_of_file(scratch_ / "run.toml");
  const size_t begin = text.find("plugin = \"llama\""), end = text.find("[tokenizer]");
  write_text(scratch_ / "run.toml", text.substr(0, begin) + "path = \"base/final\"\n" + text.substr(end) +
                                        "[[data.eval]]\npath = \"corpus.txt\"\n");
  ASSERT_EQ(train().exit_code, 0);
  // Only a directory of another program may be edited.
  EXPECT_EQ(shell("sed -i 's/\"rope_theta\": 10000.0/\"rope_theta\": 20.0/' base/final/config.json").exit_code, 0);
  EXPECT_EQ(shell("\"$CHASSIS\" eval run.toml eval.max_batches=1").exit_code, 7);
  EXPECT_EQ(shell("rm base/final/manifest.json").exit_code, 0);
  const Outcome eval = shell("\"$CHASSIS\" eval run.toml eval.max_batches=1");
  EXPECT_HAS(eval.output, "model.config.rope_theta was 10000.0, is 20.0");
  const Outcome done = train();
  EXPECT_EQ(done.exit_code, 2) << done.output;
  EXPECT_LT(done.output.find("model.config.rope_theta was 10000.0, is 20.0"),
            done.output.find("and the run has reached step 6 (out/checkpoints/step-000006): nothing is left to train"))
      << done.output;
  const Outcome strict = train({"run.max_steps=8", "run.strict=true"});
  EXPECT_EQ(strict.exit_code, 2) << strict.output;
  EXPECT_HAS(strict.output, "model.config.rope_theta was 10000.0, is 20.0");
  const Outcome resumed = train({"run.max_steps=8"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "model.config.rope_theta was 10000.0, is 20.0");
}

// run.strict and exports also read the files of a checkpoint that hold no tensors.
TEST_F(FirstUse, DamageToFilesWithoutTensorsIsFound) {
  ASSERT_EQ(train({"checkpoint.every_steps=2"}).exit_code, 0);
  const auto damage = [&](const std::string& file, const std::string& edit) {
    EXPECT_EQ(shell("sed -i '" + edit + "' out/checkpoints/step-000006/" + file).exit_code, 0);
  };
  damage("config.json", "s/\"rope_theta\": 10000.0/\"rope_theta\": 20000.0/");
  const Outcome exported = shell("\"$CHASSIS\" ckpt export out/checkpoints/step-000006 exported");
  EXPECT_EQ(exported.exit_code, 7) << exported.output;
  EXPECT_HAS(exported.output, "step-000006/config.json' is damaged: its CRC32C is ");
  damage("config.json", "s/\"rope_theta\": 20000.0/\"rope_theta\": 10000.0/");
  damage("resolved.toml", "s/lr = 0.01/lr = 0.02/");
  const Outcome strict = train({"run.max_steps=8", "optimizer.lr=2e-2", "run.strict=true"});
  EXPECT_EQ(strict.exit_code, 2) << strict.output;
  EXPECT_HAS(strict.output, "optimizer.lr was 0.01, is 0.02");
}

// A file that is not checked before it is used would be trained on, and saved again with a new checksum.
TEST_F(FirstUse, DamageToAModelDirectoryStopsEveryUseOfIt) {
  ASSERT_EQ(train({"run.output_dir=base"}).exit_code, 0);
  const std::string text = text_of_file(scratch_ / "run.toml");
  const size_t begin = text.find("plugin = \"llama\""), end = text.find("[tokenizer]");
  EXPECT_EQ(shell("mv base/final hub && rm hub/manifest.json").exit_code, 0);
  write_text(scratch_ / "hub/generation_config.json", "{\"temperature\": 0.5}");
  write_text(scratch_ / "run.toml", text.substr(0, begin) + "path = \"hub\"\n" + text.substr(end));
  ASSERT_EQ(train().exit_code, 0);
  write_text(scratch_ / "run.toml", text.substr(0, begin) + "path = \"out/final\"\n" + text.substr(end) +
                                        "[[data.eval]]\npath = \"corpus.txt\"\n");
  const std::vector<std::string> uses = {"train run.toml run.output_dir=other",
                                         "check run.toml",
                                         "eval run.toml eval.max_batches=1 --from out/final",
                                         "generate run.toml --prompt a generate.max_new_tokens=1 --from out/final",
                                         "ckpt export out/final exported",
                                         "ckpt quantize out/final --out quantized --quant bnb4",
                                         "init new.toml --model out/final --data corpus.txt",
                                         "tokenizer encode out/final corpus.txt --plugin bytes"};
  for (const char* file : {"config.json", "generation_config.json"}) {
    const std::string path = std::string("out/final/") + file;
    ASSERT_EQ(shell("cp " + path + " whole").exit_code, 0);
    std::string bytes = text_of_file(scratch_ / path);
    bytes[bytes.size() / 2] ^= 1;
    write_text(scratch_ / path, bytes);
    for (const std::string& use : uses) {
      const Outcome run = shell("\"$CHASSIS\" " + use);
      EXPECT_EQ(run.exit_code, 7) << use << "\n" << run.output;
      EXPECT_HAS(run.output, path + "' is damaged: its CRC32C is ");
      EXPECT_HAS(run.output, "delete out/final/manifest.json");
    }
    ASSERT_EQ(shell("mv whole " + path).exit_code, 0);
  }
  for (const char* made : {"other", "exported", "quantized"}) EXPECT_EQ(shell(std::string("ls ") + made).exit_code, 2);
  EXPECT_EQ(shell("\"$CHASSIS\" ckpt export out/final exported").exit_code, 0) << "it is whole again";
  // A tokenizer of one directory with the weights of another.
  write_text(scratch_ / "exported/generation_config.json", "{\"temperature\": 0.7}");
  const Outcome beside = train({"run.output_dir=other", "model.path=hub", "tokenizer.path=exported"});
  EXPECT_EQ(beside.exit_code, 7) << beside.output;
  EXPECT_HAS(beside.output, "exported/generation_config.json' is damaged: ");
}

TEST_F(FirstUse, DamageToTheFilesOfATokenizerStopsEveryUseOfThem) {
  ASSERT_EQ(train({"run.output_dir=base", "run.max_steps=1"}).exit_code, 0);
  EXPECT_EQ(shell("mv base/final hub && rm hub/manifest.json").exit_code, 0);
  write_text(scratch_ / "hub/tokenizer.json", "{\"version\": \"1.0\", \"model\": {}}");
  write_text(scratch_ / "hub/tokenizer_config.json", "{\"eos_token\": \"<|im_start|>\"}");
  ASSERT_EQ(shell("\"$CHASSIS\" ckpt export hub out").exit_code, 0);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    const std::string path = std::string("out/") + file, whole = text_of_file(scratch_ / path);
    std::string bytes = whole;
    bytes[bytes.size() / 2] ^= 1;
    write_text(scratch_ / path, bytes);
    for (const char* use : {"train run.toml run.output_dir=other tokenizer.path=out",
                            "train run.toml run.output_dir=other 'model={path=\"out\"}'", "ckpt export out exported",
                            "tokenizer encode out corpus.txt --plugin bytes"}) {
      const Outcome run = shell("\"$CHASSIS\" " + std::string(use));
      EXPECT_EQ(run.exit_code, 7) << use << "\n" << run.output;
      EXPECT_HAS(run.output, path + "' is damaged: its CRC32C is ");
    }
    write_text(scratch_ / path, whole);
  }
  EXPECT_EQ(shell("\"$CHASSIS\" ckpt export out exported").exit_code, 0) << "it is whole again";
}

TEST_F(FirstUse, MissingMetricsAreReportedOnResume) {
  ASSERT_EQ(train().exit_code, 0);
  EXPECT_EQ(shell("rm out/metrics.jsonl").exit_code, 0);
  const Outcome resumed = train({"run.max_steps=8"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "out/metrics.jsonl has no step, and the run continues from step 6");
}

TEST_F(FirstUse, OutputAmongTheDataAndInvalidNamesAreRefused) {
  EXPECT_EQ(shell("mkdir data && cp corpus.txt data").exit_code, 0);
  const Outcome among = train({"run.output_dir=data", "data.train.0.path=data"});
  EXPECT_EQ(among.exit_code, 2) << among.output;
  EXPECT_HAS(among.output, "data.train.0.path is run.output_dir itself");
  for (const char* name : {"../x", "", "a/b", ".."})
    expect_refusal({std::string("run.name=") + name}, 2, "is not a valid folder name");
  for (const char* key : {"model", "comm", "optimizer", "attention", "parallel.0"})
    expect_refusal({std::string(key) + ".plugin="}, 2, std::string(key) + ".plugin = \"\" names no plugin");
  expect_refusal({"kernels.plugins=[\"\"]"}, 2, "kernels.plugins = [\"\"] names no plugin");
  EXPECT_HAS(check({"run.toml", "optimizer.lr=1e-3", "optimizer.lr=2e-3"}).output,
             "optimizer.lr is given twice on the command line; the last one counts");
}

TEST_F(FirstUse, RemainingEpochsAreCountedWithTheNewBatch) {
  const auto steps = [&](const Outcome& run) {
    const size_t end = run.output.find(" steps of ");
    const size_t begin = run.output.rfind(' ', end - 1);
    return end == std::string::npos ? -1 : std::stoi(run.output.substr(begin, end - begin));
  };
  const Words epochs = {"run.max_steps=0", "run.epochs=0.2", "checkpoint.every_steps=10"};
  const auto with = [&](Words more) {
    more.insert(more.end(), epochs.begin(), epochs.end());
    return train(more);
  };
  const int all = steps(with({"run.output_dir=a"}));
  ASSERT_GT(all, 10);
  ASSERT_EQ(train({"run.output_dir=b", "run.max_steps=10"}).exit_code, 0);
  const Outcome longer = with({"run.output_dir=b", "train.global_batch_size=8"});
  EXPECT_EQ(longer.exit_code, 0) << longer.output;
  const int left = (all - 10 + 1) / 2;
  EXPECT_EQ(steps(longer), 10 + left) << longer.output;
  const std::string found = "; " + std::to_string(left) + " of " + std::to_string(10 + left) + " steps are left: ";
  const size_t at = longer.output.find(found);
  ASSERT_NE(at, std::string::npos) << longer.output;
  double now = 0, before = 0;
  std::sscanf(longer.output.c_str() + at + found.size(), "%lf epochs, after %lf epochs", &now, &before);
  const double ratio = left * 8 / (10 * 4.0);
  EXPECT_NEAR(now / before, ratio, 0.02 * ratio) << longer.output;
  EXPECT_NEAR(now + before, 0.2, 0.04) << longer.output;
}

TEST_F(FirstUse, AnEnormousBatchIsPlannedOrRefusedWithNumbers) {
  const auto plan = [&](const std::string& rows) {
    return run_process({program(), "plan", "run.toml", "train.seq_len=16777216", "train.micro_batch_size=" + rows,
                        "train.global_batch_size=" + rows, "--memory", "80GiB"},
                       scratch_.path());
  };
  const Outcome large = plan("4");
  EXPECT_EQ(large.exit_code, 4) << large.output;
  EXPECT_HAS(large.output, "does not fit: ");
  const Outcome larger = plan("16777216");
  EXPECT_EQ(larger.exit_code, 2) << larger.output;
  EXPECT_HAS(larger.output, "train.micro_batch_size × train.seq_len = 16777216 × 16777216 is more than the");
}

TEST_F(FirstUse, AMillionRanksAreCheckedAsQuicklyAsFew) {
  const Words mesh = {"run.toml",        "parallel=[{plugin=\"ddp\"}]",     "mesh.dp_replicate=1000000",
                      "mesh.dp_shard=1", "train.global_batch_size=2000000", "checkpoint.async=staged"};
  const Outcome run = check(mesh);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "saving      not proven: too many shards to prove it here");
}

TEST_F(FirstUse, ATerminalGetsNoControlCharacters) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  write_text(scratch_ / "prompt", "a\x1b[31m\xc2\x9b");
  const std::string generate = "\"$CHASSIS\" generate run.toml generate.max_new_tokens=1 --prompt \"$(cat prompt)\"";
  EXPECT_HAS(shell(generate + " | cat").output, "a\x1b[31m\xc2\x9b");
  const Outcome shown = shell("script -qec '" + generate + "' /dev/null < /dev/null");
  EXPECT_EQ(shown.output.find("\x1b[31m"), std::string::npos) << shown.output;
  EXPECT_EQ(shown.output.find("\xc2\x9b"), std::string::npos) << shown.output;
  EXPECT_HAS(shown.output, "a\\x1b[31m\\x9b");
}

}  // namespace
}  // namespace chassis::test
