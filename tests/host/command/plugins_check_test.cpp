// `chassis plugins check` as a program: exit codes, messages, and faults that only the whole program can catch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;

Outcome check(const std::string& file, std::vector<std::string> words = {}) {
  const std::vector<std::string> command = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "plugins", "check", file};
  words.insert(words.begin(), command.begin(), command.end());
  const test::ScratchDirectory scratch;
  return test::run_process(words, scratch.path());
}
Outcome check_nonconforming(const std::string& fault, std::vector<std::string> words,
                            const std::string& name = "nonconforming") {
  ::setenv("NONCONFORMING", fault.c_str(), 1);
  const Outcome outcome = check(CHASSIS_TEST_STUB_DIR "/" + name + ".so", std::move(words));
  ::unsetenv("NONCONFORMING");
  return outcome;
}

TEST(PluginsCheck, ReportsThatAPluginConforms) {
  const Outcome bytes = check(CHASSIS_TEST_PLUGIN_DIR "/bytes.so", {"--only", "static", "--only", "numerics"});
  EXPECT_EQ(bytes.exit_code, 0) << bytes.output;
  EXPECT_HAS(bytes.output, "/bytes.so conforms: 7 passed\n");
}

TEST(PluginsCheck, ComparesStrategiesModelsAndProvidersOfOneLibrary) {
  const Outcome good = check_nonconforming("", {"--only", "numerics"});
  EXPECT_EQ(good.exit_code, 0) << good.output;
  EXPECT_HAS(good.output, "nonconforming.so conforms: 3 passed\n");
  const Outcome bad = check_nonconforming("stale", {"--only", "numerics/reference"});
  EXPECT_EQ(bad.exit_code, 3) << bad.output;
  EXPECT_HAS(bad.output, "FAILED   numerics/reference (");
  EXPECT_HAS(bad.output, "was not updated after the optimizer step");
  EXPECT_HAS(bad.output, "nonconforming.so does not conform: 1 failed\n");
}

TEST(PluginsCheck, ExaminesATokenizerWithFilesThatItTrainedOrThatAreGiven) {
  const std::string words = CHASSIS_TEST_STUB_DIR "/words.so";
  const Outcome good = check(words);
  EXPECT_EQ(good.exit_code, 0) << good.output;
  EXPECT_HAS(good.output, "give a directory with --model DIR");
  const test::ScratchDirectory directory;
  test::write_text(directory / "words.txt", "the\nfox\n");
  const Outcome given = check(words, {"--only", "numerics", "--model", directory.path()});
  EXPECT_EQ(given.exit_code, 0) << given.output;
  EXPECT_EQ(given.output.find("--model DIR"), std::string::npos) << given.output;
  ::setenv("NONCONFORMING", "loops", 1);
  const Outcome bad = check(words, {"--only", "numerics/reference"});
  ::unsetenv("NONCONFORMING");
  EXPECT_EQ(bad.exit_code, 3) << bad.output;
  EXPECT_HAS(bad.output, "an endless template is rendered, expected INVALID_ARGUMENT");
}

TEST(PluginsCheck, DoesNotBlameAPluginForADamagedLibraryBesideIt) {
  const test::ScratchDirectory folder;
  std::filesystem::copy(CHASSIS_TEST_PLUGIN_DIR "/bytes.so", folder / "bytes.so");
  test::write_text(folder / "damaged.so", test::text_of_file(folder / "bytes.so").substr(0, 5000));
  const Outcome outcome =
      check(folder / "bytes.so", {"--only", "static", "--only", "process", "--plugin-path", folder.path()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "passed   process/output");
}

TEST(PluginsCheck, NamesTheCallThatEndedTheProcess) {
  ::setenv("NONCONFORMING", "exits", 1);
  const Outcome exits = check(CHASSIS_TEST_STUB_DIR "/words.so", {"--only", "numerics/reference", "--only", "files"});
  ::unsetenv("NONCONFORMING");
  EXPECT_EQ(exits.exit_code, 3) << exits.output;
  EXPECT_HAS(exits.output, "the process was ended by exit(0) inside plugin 'words' 0.1.0 in encode");
  EXPECT_HAS(exits.output, "passed   process/files");
}

// `chassis check` of a run with plugins of the tests.
std::string checked_run(const std::string& fault, const std::string& tables) {
  const test::ScratchDirectory scratch;
  std::filesystem::create_directory(scratch / "words");
  test::write_text(scratch / "words/words.txt", "the\n");
  test::write_text(scratch / "run.toml",
                   "schema_version = 1\n[run]\nmax_steps = 1\ndevice = \"cpu\"\n" + tables + R"([[data.train]]
path = "corpus.txt"
[train]
seq_len = 16
[optimizer]
lr = 1e-3
)");
  ::setenv("NONCONFORMING", fault.c_str(), 1);
  const Outcome outcome = test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "check", "run.toml",
                                             "--without-data", "--plugin-path", CHASSIS_TEST_STUB_DIR},
                                            scratch.path());
  ::unsetenv("NONCONFORMING");
  return outcome.output;
}

TEST(PluginsCheck, ARunRefusesAModelThatItCannotUseByItsName) {
  const auto refused = [](const std::string& fault) {
    return checked_run(fault,
                       "[model]\nplugin = \"nonconforming\"\nconfig = { family = \"nonconforming\" "
                       "}\n[tokenizer]\nplugin = \"bytes\"\n");
  };
  EXPECT_HAS(refused("no logits"),
             "model 'nonconforming': its last block 'head' has no output \"logits\" [B, T, vocab]");
  EXPECT_HAS(refused("a loss"), "model 'nonconforming': its last block 'head' outputs \"loss\", but the host adds ");
  EXPECT_HAS(refused("no scalar"), "model 'nonconforming': the output \"aux_loss\" of block 'head' is the value ");
  EXPECT_HAS(refused("no deviation"), "of block 'head' has the init_std nan, expected a number that is not negative");
  EXPECT_HAS(refused("negative positions"), "plugin 'nonconforming' 0.1.0: max_positions() returns -5, expected ");
  EXPECT_HAS(refused("no config"), "plugin 'nonconforming' 0.1.0: config() returns a text that is not JSON: ");
}

TEST(PluginsCheck, ARunNamesATokenizerOfAnotherFolderThatOpensTheFiles) {
  EXPECT_HAS(checked_run("", "[model]\nplugin = \"llama\"\n[tokenizer]\npath = \"words\"\n"),
             "tokenizer.path = \"words\" has words.txt, which plugin 'words' opens; it lies outside");
}

TEST(PluginsCheck, TakesTheNameOfAnInstalledPlugin) {
  const Outcome bytes = check("bytes", {"--only", "static"});
  EXPECT_EQ(bytes.exit_code, 0) << bytes.output;
  EXPECT_HAS(bytes.output, "/bytes.so conforms: 4 passed\n");
  EXPECT_HAS(check("bites").output,
             "no plugin 'bites' is installed, and there is no such file (did you mean 'bytes'?)");
}

TEST(PluginsCheck, FindsAnUnknownOpInAPatternAndAnOptionThatIsAKeyOfTheHost) {
  const std::string unruly = CHASSIS_TEST_STUB_DIR "/unruly.so";
  EXPECT_HAS(check(unruly, {"--only", "numerics/reference"}).output,
             "names the op 'rms_nrom', which this host does not know");
  EXPECT_HAS(check(unruly, {"--only", "load/options"}).output,
             "optimizer/greedy has an option 'lr', which is a key of the host in [optimizer]");
}

TEST(PluginsCheck, FindsAnElementAfterOrBeforeAnOutput) {
  const Outcome far = check_nonconforming("one too far", {"--only", "numerics/guard-after"});
  EXPECT_EQ(far.exit_code, 3) << far.output;
  EXPECT_HAS(far.output, "FAILED   numerics/guard-after");
  EXPECT_HAS(far.output, "wrote 4 bytes past the end of a buffer of ");
  const Outcome early = check_nonconforming("one too early", {"--only", "numerics/guard-before"});
  EXPECT_EQ(early.exit_code, 3) << early.output;
  EXPECT_HAS(early.output, "read or wrote 4 bytes before the start of a buffer of ");
}

TEST(PluginsCheck, GuardsComponentsAndShowsWhereACrashComesFrom) {
  const Outcome one = check_nonconforming("writes beyond", {"--only", "numerics/guard-after"}, "nonconforming_quant");
  EXPECT_EQ(one.exit_code, 3) << one.output;
  EXPECT_HAS(one.output, "wrote 1 byte past the end of a buffer of ");
  const Outcome far = check_nonconforming("writes far beyond", {"--only", "numerics"}, "nonconforming_quant");
  EXPECT_EQ(far.exit_code, 3) << far.output;
  EXPECT_HAS(far.output, "crashed with signal 11");
  EXPECT_EQ(far.output.find("not run"), std::string::npos) << far.output;
}

TEST(PluginsCheck, GivesMembersTheOptionsOfTheCommandLine) {
  const Outcome given = check("adamw8bit", {"order=bnb", "eps=1e-6", "--only", "numerics/reference"});
  EXPECT_EQ(given.exit_code, 0) << given.output;
  const Outcome unknown = check("adamw8bit", {"ordre=bnb"});
  EXPECT_EQ(unknown.exit_code, 2) << unknown.output;
  EXPECT_HAS(unknown.output, "no member of adamw8bit has an option 'ordre'; the options are ");
  const Outcome wrong = check("adamw8bit", {"order=rust", "--only", "options"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.output;
  EXPECT_HAS(wrong.output, "order = \"rust\" is not \"torch\" or \"bnb\"");
  EXPECT_EQ(check("adamw8bit", {"order"}).exit_code, 2);
}

TEST(PluginsCheck, AnUnknownVerbIsCalledThat) {
  const test::ScratchDirectory scratch;
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
    return test::run_process(words, scratch.path());
  };
  const Outcome chekc = run({"plugins", "--plugin-path", scratch.path(), "chekc", "x.so"});
  EXPECT_EQ(chekc.exit_code, 2);
  EXPECT_HAS(chekc.output, "unknown command 'plugins chekc' (did you mean 'check'?)");
  EXPECT_HAS(chekc.output, "chassis help plugins lists its commands");
  EXPECT_HAS(run({"ckpt", "frobnicate"}).output, "unknown command 'ckpt frobnicate'");
}

TEST(PluginsCheck, RefusesAMissingOrForeignFileAtOnce) {
  const Outcome missing = check("not_there.so");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_HAS(missing.output, "error: there is no file not_there.so\n");
  const Outcome foreign = check(CHASSIS_TEST_SOURCE_DIR "/README.md");
  EXPECT_EQ(foreign.exit_code, 3);
  EXPECT_HAS(foreign.output, "is not a shared library: it has no ELF header\n");
  EXPECT_EQ(foreign.output.find("static/"), std::string::npos) << foreign.output;
}

}  // namespace
}  // namespace chassis
