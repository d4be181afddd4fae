// Messages and exit codes of the program for wrong command lines, configurations and model directories.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <tuple>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::write_text;

const std::string kProgram = CHASSIS_TEST_BINARY_DIR "/bin/chassis";

class Messages : public testing::Test {
 protected:
  Messages() {
    fs::copy(CHASSIS_TEST_SOURCE_DIR "/tests/golden/run/base", scratch_.path(), fs::copy_options::recursive);
  }

  Outcome chassis(std::vector<std::string> words) const {
    words.insert(words.begin(), kProgram);
    return test::run_process(words, scratch_.path());
  }
  Outcome shell(const std::string& script) const {
    return test::run_process({"/bin/bash", "-c", script}, scratch_.path(), {{"CHASSIS", kProgram}});
  }
  void expect_refusal(const Outcome& run, int exit_code, const std::string& begin) const {
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    EXPECT_EQ(run.output.substr(0, begin.size()), begin) << run.output;
    EXPECT_EQ(run.output.find("internal error"), std::string::npos) << run.output;
  }
  // Writes model/config.json, and m.toml, a configuration with this model.
  void write_model(const std::string& config_json) const {
    fs::create_directory(scratch_ / "model");
    write_text(scratch_ / "model/config.json", config_json);
    write_text(scratch_ / "m.toml", "extends = [\"pretrained.toml\"]\n[model]\ninit = \"random\"\n");
  }
  test::ScratchDirectory scratch_;
};

constexpr const char* kTiny =
    R"("architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
       "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 259)";

TEST_F(Messages, AWrongCommandLineIsAnErrorWithExitCode2) {
  expect_refusal(chassis({}), 2, "error: no command is given\nhint: chassis help lists the commands\n");
  expect_refusal(chassis({"chekc"}), 2, "error: unknown command 'chekc' (did you mean 'check'?)\nhint: ");
  expect_refusal(chassis({"--plugin-path", ".", "chekc"}), 2, "error: unknown command 'chekc'");
  expect_refusal(chassis({"--nope"}), 2, "error: ");
  expect_refusal(chassis({"check"}), 2, "error: config is required\nhint: chassis help check\n");
  expect_refusal(chassis({"check", "good.toml", "--nope"}), 2,
                 "error: The following argument was not expected: --nope\nhint: ");
  expect_refusal(chassis({"plugins", "nope"}), 2, "error: ");
  expect_refusal(chassis({"check", "good.toml", "--x\x1b[31m"}), 2,
                 "error: The following argument was not expected: --x\\x1b[31m");
}

TEST_F(Messages, ARefusalByTheModelStandsAtTheKeyThatItNames) {
  expect_refusal(chassis({"check", "good.toml", "model.config.hidden_size=33"}), 2,
                 "error: command line 'model.config.hidden_size=33': plugin 'llama' 0.1.0: hidden_size 33 is not a ");
  write_text(scratch_ / "rope.toml",
             "extends = [\"good.toml\"]\n[model.config.rope_scaling]\nfactor = 2.0\nrope_type = \"yarn\"\n");
  expect_refusal(chassis({"check", "rope.toml"}), 2,
                 "error: rope.toml:4:13: plugin 'llama' 0.1.0: rope type 'yarn' is not supported by model 'llama'");
}

TEST_F(Messages, HelpAndVersionsArePrinted) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"help"}, {"--help"}}) {
    const Outcome help = chassis(words);
    EXPECT_EQ(help.exit_code, 0);
    for (const char* verb : {"train", "generate", "--version", "help"}) EXPECT_HAS(help.output, verb);
  }
  EXPECT_EQ(chassis({"help", "check"}).output, chassis({"check", "--help"}).output);
  EXPECT_EQ(chassis({"help", "plugins", "check"}).output, chassis({"plugins", "check", "--help"}).output);
  const Outcome version = chassis({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_HAS(version.output, "chassis ");
  EXPECT_HAS(version.output, "LibTorch ");
}

TEST_F(Messages, ThePluginPathMayStandAnywhere) {
  fs::create_directory(scratch_ / "mine");
  for (const char* name : {"llama.so", "naive.so", "reference.so", "bytes.so", "adamw.so", "safetensors.so"})
    if (fs::exists(CHASSIS_TEST_PLUGIN_DIR "/" + std::string(name)))
      fs::copy_file(CHASSIS_TEST_PLUGIN_DIR "/" + std::string(name), scratch_ / ("mine/" + std::string(name)));
  const std::string there = "mine/llama.so";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--plugin-path", "mine", "plugins", "info", "llama"},
        {"plugins", "--plugin-path", "mine", "info", "llama"},
        {"plugins", "info", "llama", "--plugin-path=mine"}}) {
    const Outcome run = chassis(words);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    EXPECT_HAS(run.output, there);
  }
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--plugin-path", "none", "check", "good.toml"},
                                                {"check", "good.toml", "--plugin-path", "none"},
                                                {"schema", "--plugin-path", "none"},
                                                {"--plugin-path", "mine", "plugins", "list", "--plugin-path", "none"}})
    EXPECT_HAS(chassis(words).output, "plugin folder none does not exist");
  EXPECT_EQ(chassis({"version", "--plugin-path", "mine"}).exit_code, 0);
}

TEST_F(Messages, NoColorTurnsColorsOff) {
  const std::string in_a_terminal = "TERM=xterm script -qec '\"$CHASSIS\" nope' /dev/null < /dev/null";
  EXPECT_HAS(shell(in_a_terminal).output, "\x1b[");
  const Outcome plain = shell("NO_COLOR=1 " + in_a_terminal);
  EXPECT_HAS(plain.output, "error: unknown command 'nope'");
  EXPECT_EQ(plain.output.find("\x1b["), std::string::npos) << plain.output;
}

TEST_F(Messages, AConfigurationMayComeFromAPipe) {
  for (const char* script : {"cat good.toml | \"$CHASSIS\" check /dev/stdin", "\"$CHASSIS\" check <(cat good.toml)",
                             "\"$CHASSIS\" check /dev/stdin < good.toml",
                             "mkfifo f && (cat good.toml > f &) && \"$CHASSIS\" check f train.seq_len=8"}) {
    const Outcome run = shell(script);
    EXPECT_EQ(run.exit_code, 0) << script << "\n" << run.output;
    EXPECT_HAS(run.output, "ok ");
  }
  expect_refusal(shell("echo 'x = ' | \"$CHASSIS\" check /dev/stdin"), 2, "error: /dev/stdin:1:");
}

TEST_F(Messages, RanksGetTheTextThatTheirParentReadFromAPipe) {
  const Outcome run = shell(
      "cat good.toml - <<< '[[parallel]]\nplugin = \"ddp\"\n[mesh]\ndp_replicate = 2\ndp_shard = 1' | "
      "\"$CHASSIS\" train /dev/stdin --nproc 2");
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_TRUE(fs::exists(scratch_ / "out/final/config.json")) << run.output;
}

TEST_F(Messages, DevicesEndlessPipesAndLargeFilesAreRefused) {
  expect_refusal(chassis({"check", "/dev/zero"}), 2, "error: cannot open '/dev/zero': it is a device");
  expect_refusal(chassis({"check", "."}), 2, "error: cannot open '.': it is a directory");
  expect_refusal(chassis({"check", "https://host/run.toml"}), 2, "error: 'https://host/run.toml' is a URL");
  expect_refusal(chassis({"check", "run.yaml"}), 2, "error: 'run.yaml' is YAML, judging by its name");
  expect_refusal(shell("yes '# endless' | \"$CHASSIS\" check /dev/stdin"), 2,
                 "error: '/dev/stdin' gives more than the maximum of 1 MiB");
  expect_refusal(chassis({"check", "none.toml"}), 2, "error: cannot open 'none.toml': No such file or directory");
  ASSERT_EQ(mkfifo((scratch_ / "pipe").c_str(), 0600), 0);
  write_model("{}");
  fs::remove(scratch_ / "model/config.json");
  fs::rename(scratch_ / "pipe", scratch_ / "model/config.json");
  const Outcome run = chassis({"check", "m.toml"});
  expect_refusal(run, 2, "error: pretrained.toml:7:8: model.path: cannot open 'model/config.json': it is a FIFO");
}

TEST_F(Messages, DeeplyNestedTomlIsRefused) {
  std::string dots = "a";
  for (int i = 0; i < 20000; ++i) dots += ".a";
  for (const std::string& text : {dots + " = 1\n", "[" + dots + "]\n"}) {
    write_text(scratch_ / "deep.toml", text);
    expect_refusal(chassis({"check", "deep.toml"}), 2, "error: deep.toml:1:");
  }
  expect_refusal(chassis({"check", "good.toml", dots + "=1"}), 2, "error: command line 'a.a.a");
}

TEST_F(Messages, APatternIsRefusedWithItsKeyAndPosition) {
  const std::string begin = "extends = [\"good.toml\"]\n[freeze]\npatterns = [\"norm\", ";
  write_text(scratch_ / "deep.toml", begin + "\"" + std::string(5000, '(') + std::string(5000, ')') + "\"]\n");
  const Outcome deep = chassis({"check", "deep.toml"});
  expect_refusal(deep, 2, "error: deep.toml:3:21: freeze.patterns: \"((((");
  EXPECT_HAS(deep.output, "parentheses are too deeply nested");
  write_text(scratch_ / "slow.toml", begin + "\"^([a-z0-9._]+)+[!?]$\"]\n");
  const Outcome slow = chassis({"check", "slow.toml"});
  EXPECT_EQ(slow.exit_code, 2);
  EXPECT_HAS(slow.output,
             "slow.toml:3:21: freeze.patterns.1: the search for \"^([a-z0-9._]+)+[!?]$\" in "
             "'model.embed_tokens.weight' was given up");
  write_text(scratch_ / "peft.toml", begin + "\"^(?!.*head).*(?<=mlp\\\\.)(up|down)_proj.*$\"]\n");
  EXPECT_EQ(chassis({"check", "peft.toml"}).exit_code, 0) << chassis({"check", "peft.toml"}).output;
}

TEST_F(Messages, AMisspeltKeyOfAnInlineModelIsRefused) {
  write_text(scratch_ / "typo.toml", "extends = [\"good.toml\"]\n[model.config]\nnum_atention_heads = 4\nzzz = 1\n");
  const Outcome run = chassis({"check", "typo.toml"});
  expect_refusal(run, 2, "error: 2 errors in the configuration:\n");
  EXPECT_HAS(run.output, "typo.toml:3:22: model.config: llama: key 'num_atention_heads' is unknown to model 'llama'");
  EXPECT_HAS(run.output, "(did you mean 'num_attention_heads'?)");
  EXPECT_HAS(run.output, "typo.toml:4:7: model.config: llama: key 'zzz' is unknown");
  const Outcome nested =
      chassis({"check", "good.toml", "model.config.rope_scaling={ rope_type = \"linear\", factor = 2.0, facto = 1 }"});
  EXPECT_EQ(nested.exit_code, 2) << nested.output;
  EXPECT_HAS(nested.output, "key 'rope_scaling.facto' is unknown");
}

TEST_F(Messages, UnknownKeysOfAnHfModelAreCountedAndCannotForgeLines) {
  write_model(std::string("{") + kTiny + R"(, "x\u001b[31m\nerror: all is lost": 1, "other": 2})");
  const Outcome run = chassis({"check", "m.toml"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "key 'x\\x1b[31m\\nerror: all is lost' is unknown");
  EXPECT_HAS(run.output, "key 'other' is unknown");
  EXPECT_EQ(run.output.find('\x1b'), std::string::npos);
}

TEST_F(Messages, BrokenModelDirectoriesNameFileAndKey) {
  for (const auto& [config, words] :
       {std::pair("{\"hidden_size\": 1e400}", "model/config.json:1:17: the number 1e400 is too large"),
        {"{\"architectures\": [3]}", "model/config.json: names no architecture: 'architectures' is [3]"},
        {"{\"architectures\": \"x\"}", "model/config.json: names no architecture"},
        {"[]", "model/config.json: is not a JSON object"},
        {"{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": \"a\"}",
         "model/config.json: plugin 'llama' 0.1.0: hidden_size is \"a\""},
        {"{\"architectures\": [\"\xff\"]}", "model/config.json:1:"}}) {
    write_model(config);
    const Outcome run = chassis({"check", "m.toml"});
    EXPECT_TRUE(run.exit_code == 2 || run.exit_code == 3) << run.output;
    EXPECT_HAS(run.output, words);
    EXPECT_EQ(run.output.find("internal error"), std::string::npos) << run.output;
  }
}

TEST_F(Messages, AModelThatIsNotThereIsTheOnlyErrorAlsoWithTextAsData) {
  write_text(scratch_ / "m.toml",
             "schema_version = 1\n[run]\nmax_steps = 1\n[model]\npath = \"Qwen/Qwen3-0.6B\"\n[[data.train]]\n"
             "path = \"x.txt\"\n[train]\nseq_len = 8\n[optimizer]\nlr = 1e-3\n");
  const Outcome run = chassis({"check", "m.toml"});
  expect_refusal(run, 2, "error: m.toml:5:8: model.path: there is no Qwen/Qwen3-0.6B/config.json");
  EXPECT_HAS(run.output, "hint: \"hub:Qwen/Qwen3-0.6B\" names that model");
  EXPECT_EQ(run.output.find("tokenizer"), std::string::npos) << run.output;
}

TEST_F(Messages, ASnapshotWhoseFilesAreLinksIsRead) {
  write_model(std::string("{") + kTiny + "}");
  fs::create_directory(scratch_ / "blobs");
  fs::rename(scratch_ / "model/config.json", scratch_ / "blobs/0a1b");
  fs::create_symlink("../blobs/0a1b", scratch_ / "model/config.json");
  const Outcome run = chassis({"check", "m.toml"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  fs::remove(scratch_ / "blobs/0a1b");
  expect_refusal(chassis({"check", "m.toml"}), 2,
                 "error: pretrained.toml:7:8: model.path: model/config.json is a link whose target does not exist");
}

TEST_F(Messages, AnErrorOfTheModelHidesNoOtherError) {
  write_text(scratch_ / "many.toml",
             "extends = [\"pretrained.toml\"]\n[model]\npath = \"nowhere\"\n[run]\nmax_step = 3\n[optimizer]\nepz = 1\n"
             "[attention]\nplugin = \"none\"\n");
  const Outcome run = chassis({"check", "many.toml"});
  expect_refusal(run, 2, "error: 4 errors in the configuration:\n");
  EXPECT_HAS(run.output, "many.toml:3:8: model.path: there is no nowhere/config.json");
  EXPECT_HAS(run.output, "unknown key 'run.max_step'");
  EXPECT_HAS(run.output, "unknown key 'optimizer.epz'");
  EXPECT_HAS(run.output, "many.toml:9:10: unknown plugin 'none' of kind 'ops'");
  // An error of the model plugin is reported with the others.
  const Outcome both = chassis({"check", "good.toml", "model.config.hidden_size=\"wide\"", "train.seqlen=3"});
  expect_refusal(both, 2, "error: 2 errors in the configuration:\n");
  EXPECT_HAS(both.output, "hidden_size is \"wide\"");
  EXPECT_HAS(both.output, "unknown key 'train.seqlen'");
}

TEST_F(Messages, UnavailableTablesAndSinksAreRefused) {
  for (const auto& [exit_code, lines, words] :
       {std::tuple(3, "[quant]\nplugin = \"mine\"\n", "bad.toml:3:10: unknown plugin 'mine' of kind 'quant'"),
        {3, "[log]\nsinks = [\"console\", \"mine\"]\n", "of kind 'sink'"}}) {
    write_text(scratch_ / "bad.toml", "extends = [\"good.toml\"]\n" + std::string(lines));
    const Outcome run = chassis({"check", "bad.toml"});
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    EXPECT_HAS(run.output, words);
  }
}

TEST_F(Messages, HintsNameNoPluginThatMayBeMissing) {
  const Outcome run = chassis({"check", "good.toml", "kernels.plugins=[\"naive\"]"});
  EXPECT_EQ(run.exit_code, 3) << run.output;
  EXPECT_HAS(run.output, "`chassis plugins list` shows those of kind ops");
  EXPECT_EQ(run.output.find("\"aten\""), std::string::npos) << run.output;
}

TEST_F(Messages, NamesThatAreNotUtf8AreShownEscaped) {
  expect_refusal(chassis({"check", "\xff.toml"}), 2, "error: cannot open '\\xff.toml'");
  fs::copy_file(scratch_ / "good.toml", scratch_ / "\xff.toml");
  const Outcome run = chassis({"check", "\xff.toml", "--resolved"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "# \\xff.toml:4:14");
  expect_refusal(chassis({"check", "good.toml", "run.output_dir=\xff"}), 2,
                 "error: command line 'run.output_dir=\\xff': an override must be UTF-8 text");
  expect_refusal(chassis({"check", "good.toml", "run.output_dir=" + std::string(300, 'x')}), 2,
                 "error: command line 'run.output");
  expect_refusal(chassis({"check", "good.toml", "--plugin-path", "\xff"}), 2,
                 "error: plugin folder \\xff does not exist");
}

TEST_F(Messages, ASizeWithoutAUnitIsRefused) {
  const Outcome run = chassis({"plan", "good.toml", "--world", "1", "--memory", "80"});
  expect_refusal(run, 2, "error: --memory 80 has no unit\nhint: for example --memory 80GiB");
  expect_refusal(chassis({"plan", "good.toml", "--world", "1", "--memory", ""}), 2, "error: --memory  is not a size");
}

}  // namespace
}  // namespace chassis
