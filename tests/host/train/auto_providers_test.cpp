// "auto" in [attention] and [kernels]: which providers it compares and takes, and what a resumed run reports.
#include <filesystem>

#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::count_of;
using test::Outcome;
using Words = std::vector<std::string>;

class AutoProviders : public test::ProgramRun {
 protected:
  AutoProviders() {
    std::string toml = test::text_of_file(scratch_ / "run.toml");
    const std::string tables = "[attention]\nplugin = \"naive\"\n[kernels]\nplugins = [\"reference\"]\n";
    toml.erase(toml.find(tables), tables.size());
    test::write_text(scratch_ / "run.toml", toml);
  }

  std::string run(const std::string& verb, Words words, int exit_code = 0) {
    words.insert(words.begin(), {program_, verb, "run.toml"});
    const Outcome outcome = test::run_process(words, scratch_.path());
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  // Copies the program, with a folder of plugins that a test may change.
  void copy_program() {
    fs::create_directories(scratch_ / "own/bin");
    fs::create_directories(plugins());
    program_ = scratch_ / "own/bin/chassis";
    fs::copy(program(), program_);
    for (const char* name : {"llama", "bytes", "adamw", "safetensors", "aten", "fused", "sdpa", "interval"}) add(name);
  }
  std::string plugins() const { return scratch_ / "own/lib/chassis/plugins"; }
  void add(const std::string& name, const std::string& folder = CHASSIS_TEST_PLUGIN_DIR) {
    fs::copy(folder + "/" + name + ".so", plugins() + "/" + name + ".so");
  }
  Json lock(const std::string& out) { return Json::parse(test::text_of_file(scratch_ / (out + "/plugins.lock"))); }

  std::string program_ = program();
};

TEST_F(AutoProviders, AreTheDefaultAndTakeIntervalInFp32) {
  const std::string graph = run("check", {"--graph", "run.device=cpu", "precision.compute=fp32"});
  EXPECT_HAS(graph, "      auto: interval ");
  EXPECT_HAS(graph, " ms is the cheapest; sdpa ");
  EXPECT_HAS(graph, "      auto: fused ");
  EXPECT_HAS(graph, " alone claims add+rms_norm");
  EXPECT_HAS(graph, " ms is the cheapest; aten ");
  EXPECT_EQ(count_of(graph, "cost unknown"), 0u) << graph;
  for (const char* other : {"naive", "reference"})
    EXPECT_EQ(count_of(graph, other), 0u) << graph;  // they only serve as references
  const std::string resolved = run("check", {"--resolved"});
  EXPECT_HAS(resolved, "[attention]\nplugin = \"auto\"");
  EXPECT_HAS(resolved, "plugins = [\"auto\"]");
}

TEST_F(AutoProviders, TakeIntervalInBf16) {
  const std::string graph = run("check", {"--graph", "run.device=cpu", "precision.compute=bf16"});
  EXPECT_HAS(graph, "      auto: interval ");
  EXPECT_HAS(graph, " ms is the cheapest; sdpa ");
}

TEST_F(AutoProviders, TrainLikeTheSameProvidersByName) {
  run("train", {"run.device=cpu", "run.max_steps=2"});
  const Json chosen = lock("out")["providers"];
  EXPECT_EQ(chosen["device"], "cpu");
  ASSERT_EQ(chosen["attention"].size(), 1u);
  EXPECT_EQ(chosen["attention"].begin().value(), "interval");
  run("train", {"run.device=cpu", "run.max_steps=2", "run.output_dir=named", "attention.plugin=interval",
                "kernels.plugins=fused,aten"});
  EXPECT_EQ(lock("named")["providers"], chosen);
  expect_same_run("out", "named");
}

TEST_F(AutoProviders, NamedProvidersComeFirst) {
  const std::string graph = run("check", {"--graph", "run.device=cpu", "kernels.plugins=aten,auto"});
  EXPECT_EQ(count_of(graph, "auto: fused"), 0u) << graph;
  EXPECT_HAS(graph, "auto: interval");
  EXPECT_EQ(count_of(run("check", {"--graph", "attention.plugin=sdpa"}), "auto: interval"), 0u);
}

TEST_F(AutoProviders, AreNotLoadedFromOtherFolders) {
  copy_program();
  fs::create_directory(scratch_ / "others");
  fs::copy(CHASSIS_TEST_STUB_DIR "/unruly.so", scratch_ / "others/unruly.so");
  fs::rename(plugins() + "/interval.so", scratch_ / "others/interval.so");
  run("train", {"run.device=cpu", "run.max_steps=1", "--plugin-path", "others"});
  const Json chosen = lock("out");
  EXPECT_EQ(chosen["providers"]["attention"].begin().value(), "sdpa");
  for (const Json& plugin : chosen["plugins"]) {
    EXPECT_NE(plugin["id"], "unruly");
    EXPECT_NE(plugin["id"], "interval");
  }
}

TEST_F(AutoProviders, AreCountedIfAnotherFolderReplacesThem) {
  copy_program();
  fs::create_directory(scratch_ / "others");
  fs::copy(plugins() + "/interval.so", scratch_ / "others/interval.so");
  const std::string said = run("check", {"--graph", "run.device=cpu", "--plugin-path", "others"});
  EXPECT_HAS(said, "warning: \"auto\" passes over 'interval': others/interval.so lies in an earlier folder than ");
  EXPECT_HAS(said, "auto: sdpa ");
}

TEST_F(AutoProviders, AreCountedIfTheyCannotBeLoaded) {
  copy_program();
  std::string bytes = test::text_of_file(plugins() + "/interval.so");
  for (size_t at; (at = bytes.find("libc.so.6")) != std::string::npos;) bytes.replace(at, 9, "libx.so.6");
  test::write_text(plugins() + "/interval.so", bytes);
  const std::string said = run("check", {"--graph", "run.device=cpu"});
  EXPECT_HAS(said, "warning: \"auto\" passes over 'interval': ");
  EXPECT_HAS(said, "libx.so.6: cannot open shared object file");
  EXPECT_HAS(said, "auto: sdpa ");
  EXPECT_HAS(run("check", {"attention.plugin=interval"}, 3), "libx.so.6: cannot open shared object file");
}

TEST_F(AutoProviders, TakeOnlyOptionsOfTheirCandidates) {
  EXPECT_HAS(run("check", {"kernels.fuse.fast=true"}, 2),
             "[kernels.fuse]: kernels.plugins does not name 'fuse', and \"auto\" compares aten, ");
  EXPECT_HAS(run("check", {"kernels.fused.fast=true"}, 2), "kernels.fused.fast");
  EXPECT_HAS(run("check", {"attention.block=64"}, 2), "unknown key 'attention.block'");
}

TEST_F(AutoProviders, AResumedRunReportsChangedProviders) {
  copy_program();
  const auto with = [&](const Words& more) {
    Words all = {"run.device=cpu", "checkpoint.every_steps=1", "schedule.name=constant"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run("train", with({"run.max_steps=2"}));
  EXPECT_EQ(count_of(run("train", with({"run.max_steps=3", "run.strict=true"})), "provider of"), 0u);
  fs::remove(plugins() + "/interval.so");
  const std::string strict = run("train", with({"run.max_steps=4", "run.strict=true"}), 2);
  EXPECT_HAS(strict, "the provider of ");
  EXPECT_HAS(strict, " was \"interval\", is \"sdpa\"");
  EXPECT_HAS(run("train", with({"run.max_steps=4"})), "warning: differs from the run that was saved: the provider of ");
  EXPECT_EQ(lock("out")["providers"]["attention"].begin().value(), "sdpa");
}

TEST_F(AutoProviders, ALockedRunComparesOnlyProvidersOfTheLock) {
  copy_program();
  fs::rename(plugins() + "/interval.so", scratch_ / "interval.so");
  run("train", {"run.device=cpu", "run.max_steps=1"});
  fs::rename(scratch_ / "interval.so", plugins() + "/interval.so");
  const std::string said = run("check", {"--graph", "run.device=cpu", "--locked"});
  EXPECT_HAS(said, "auto: sdpa ");
  EXPECT_EQ(count_of(said, "interval"), 0u) << said;
  std::string bytes = test::text_of_file(plugins() + "/fused.so");
  test::write_text(plugins() + "/fused.so", bytes + "x");
  EXPECT_HAS(run("check", {"--graph", "run.device=cpu", "--locked"}, 3), "fused");
}

}  // namespace
}  // namespace chassis
