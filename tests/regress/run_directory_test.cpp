// A run loses no file that it finds in its directory, and finds what would fail its end before its first step.
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "tests/support/program_run.hpp"
#include "tests/support/unused_port.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public ProgramRun {
 protected:
  // Every file below the folder except .lock, which names the last process.
  std::map<std::string, std::string> files(const std::string& folder) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(scratch_ / folder))
      if (entry.is_regular_file() && entry.path().filename() != ".lock")
        all[entry.path().string()] = text_of_file(entry.path().string());
    return all;
  }
  // Expects that the run was refused before the first step.
  void expect_refused(const Outcome& run, int exit_code, const std::string& words) {
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    EXPECT_HAS(run.output, words);
    EXPECT_EQ(run.output.find("step 1/"), std::string::npos) << run.output;
  }
  // Trains as a user who is not root, since root may read and write everything.
  Outcome train_unprivileged(const Words& overrides) {
    if (geteuid() != 0) return train(overrides);
    fs::permissions(scratch_.path(), fs::perms::all);
    for (const auto& entry : fs::recursive_directory_iterator(scratch_.path()))
      if (lchown(entry.path().c_str(), 65534, 65534) != 0) ADD_FAILURE() << "chown " << entry.path();
    Words words = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    for (const std::string& word : command(overrides)) words.push_back(word);
    return run_process(words, scratch_.path());
  }
};

TEST_F(RunDirectoryTest, LinksInPlaceOfItsFilesAreRefusedAndTheirTargetsStay) {
  for (const char* name : {"metrics.jsonl", "log.txt", "resolved.toml", "run.json", "plugins.lock"}) {
    const std::string out = std::string("out-") + name;
    fs::create_directory(scratch_ / out);
    write_text(scratch_ / "precious", "precious\n");
    fs::create_symlink("../precious", scratch_ / (out + "/" + name));
    expect_refused(train({"run.output_dir=" + out}), 7, out + "/" + name + "' is in the way: it is a link");
    EXPECT_EQ(text_of_file(scratch_ / "precious"), "precious\n") << name;
    EXPECT_EQ(files(out).size(), 1u) << "nothing was written beside the link";
  }
}

TEST_F(RunDirectoryTest, LockedRunsUseThePluginsOfTheLockAndNoOthers) {
  expect_refused(train({"run.output_dir=out", "--locked"}), 2, "plugins.locked = true, but there is no '");
  EXPECT_FALSE(fs::exists(scratch_ / "out/plugins.lock"));
  ASSERT_EQ(train({"run.output_dir=out", "run.max_steps=2"}).exit_code, 0);
  EXPECT_EQ(train({"run.output_dir=out", "run.max_steps=3", "--locked"}).exit_code, 0);
  expect_refused(train({"run.output_dir=out", "run.max_steps=4", "optimizer.plugin=sgd", "--locked"}), 3,
                 "is not listed in");
  std::string lock = text_of_file(scratch_ / "out/plugins.lock");
  const size_t hash = lock.find("\"sha256\": \"");
  ASSERT_NE(hash, std::string::npos);
  lock.replace(hash + std::strlen("\"sha256\": \""), 4, "0000");
  write_text(scratch_ / "out/plugins.lock", lock);
  expect_refused(train({"run.output_dir=out", "run.max_steps=4", "--locked"}), 3, "it is pinned to sha256:0000");
}

TEST_F(RunDirectoryTest, ALockHoldsTwoVersionsOfOneLibrary) {
  std::string naive = text_of_file(CHASSIS_TEST_PLUGIN_DIR "/naive.so");
  const size_t version = naive.find("version=0.");
  ASSERT_NE(version, std::string::npos);
  const std::string ours = naive.substr(version + 8, naive.find('\n', version) - version - 8);
  naive[version + 8] = '9';
  fs::create_directory(scratch_ / "later");
  write_text(scratch_ / "later/naive.so", naive);
  const auto run = [&](const std::string& max_steps, const Words& more) {
    Words words = {"run.output_dir=out",
                   "run.max_steps=" + max_steps,
                   "--plugin-path",
                   "later",
                   "attention.plugin=naive@" + ours,
                   "kernels.plugins=naive@9" + ours.substr(1) + ",reference"};
    words.insert(words.end(), more.begin(), more.end());
    return train(words);
  };
  const Outcome first = run("1", {});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const Outcome locked = run("2", {"--locked"});
  EXPECT_EQ(locked.exit_code, 0) << locked.output;
  naive += "changed";
  write_text(scratch_ / "later/naive.so", naive);
  expect_refused(run("3", {"--locked"}), 3, "but it is pinned to sha256:");
}

TEST_F(RunDirectoryTest, ItsDirectoryIsNoConfigurationAndItsCheckpointsFolderStandsForTheRun) {
  ASSERT_EQ(train({"run.max_steps=2"}).exit_code, 0);
  EXPECT_HAS(shell("\"$CHASSIS\" eval out").output, "hint: its configuration is out/resolved.toml");
  EXPECT_HAS(shell("\"$CHASSIS\" train out/final").output, "'out/final' is a model directory, not a configuration");
  for (const char* from : {"out", "out/checkpoints", "out/checkpoints/"}) {
    const Outcome run =
        shell(std::string("\"$CHASSIS\" generate run.toml --prompt x generate.max_new_tokens=2 --from ") + from);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    EXPECT_HAS(run.output, "from out/checkpoints/step-000002");
  }
}

TEST_F(RunDirectoryTest, FifosInPlaceOfItsFilesAreRefusedWithoutWaiting) {
  for (const char* name : {"metrics.jsonl", "log.txt"}) {
    const std::string out = std::string("out-") + name, fifo = scratch_ / (out + "/" + name);
    fs::create_directory(scratch_ / out);
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    expect_refused(train({"run.output_dir=" + out}), 7, out + "/" + name + "' is in the way: it is not a regular file");
    EXPECT_TRUE(fs::is_fifo(fifo));
    EXPECT_TRUE(files(out).empty()) << "nothing was written beside it";
  }
}

TEST_F(RunDirectoryTest, AForeignFileWithTheNameOfARunFileStays) {
  const std::pair<const char*, const char*> foreign[] = {{"metrics.jsonl", "{\"step\": 1, \"my_loss\": 2}\nnotes\n"},
                                                         {"resolved.toml", "mine = true\n"},
                                                         {"plugins.lock", "[[package]]\n"},
                                                         {"run.json", "{\"command\": \"mine\"}\n"}};
  for (const auto& [name, text] : foreign) {
    const std::string out = std::string("out-") + name;
    fs::create_directory(scratch_ / out);
    write_text(scratch_ / (out + "/" + name), text);
    const Outcome run = train({"run.output_dir=" + out});
    expect_refused(run, 7, out + "/" + name);
    EXPECT_EQ(text_of_file(scratch_ / (out + "/" + name)), text);
    EXPECT_EQ(files(out).size(), 1u);
  }
}

TEST_F(RunDirectoryTest, ARunInsideACheckpointOrExportIsRefused) {
  ASSERT_EQ(train({"checkpoint.every_steps=3"}).exit_code, 0);
  for (const char* place :
       {"out/checkpoints/step-000006", "out/checkpoints/step-000006/run", "out/checkpoints/run", "out/final"}) {
    const Outcome run = train({std::string("run.output_dir=") + place});
    EXPECT_EQ(run.exit_code, 7) << run.output;
    EXPECT_HAS(run.output, "is not written: ");
  }
  EXPECT_EQ(shell("\"$CHASSIS\" ckpt verify out").exit_code, 0);
}

TEST_F(RunDirectoryTest, ARefusedRunLeavesEveryFileAsItWas) {
  ASSERT_EQ(train().exit_code, 0);
  const auto before = files("out");
  expect_refused(train({"model.config.intermediate_size=48"}), 2, "holds another run");
  EXPECT_TRUE(files("out") == before);
  expect_refused(train({"run.seed=7", "run.max_steps=9", "optimizer.lr=1"}), 2, "a resumed run keeps its seed");
  EXPECT_TRUE(files("out") == before);
  expect_refused(train({"run.max_steps=3"}), 2, "has reached step 6");
  EXPECT_TRUE(files("out") == before);
  expect_refused(train({"run.max_steps=9", "run.strict=true", "optimizer.lr=1"}), 2, "optimizer.lr");
  EXPECT_TRUE(files("out") == before);
}

TEST_F(RunDirectoryTest, AFirstStartThatFailedDoesNotBlockTheCorrectedOne) {
  ASSERT_EQ(train({"run.output_dir=other", "run.max_steps=1"}).exit_code, 0);
  const Outcome failed = train({"run.resume=other/final", "model.config.intermediate_size=48"});
  EXPECT_EQ(failed.exit_code, 7) << failed.output;
  const Outcome corrected = train();
  EXPECT_EQ(corrected.exit_code, 0) << corrected.output;
}

TEST_F(RunDirectoryTest, ASecondRunInTheSameDirectoryIsRefusedBeforeItWrites) {
  Process first(command({"run.max_steps=100000"}), scratch_.path());
  ASSERT_TRUE(first.wait_for("step 2/")) << first.output_so_far();
  const std::string resolved = text_of_file(scratch_ / "out/resolved.toml");
  fs::create_directory(scratch_ / "elsewhere");
  const Outcome second = run_process({"/bin/sh", "-c", "cd .. && exec \"$0\" train run.toml optimizer.lr=1", program()},
                                     scratch_ / "elsewhere");
  expect_refused(second, 7, "is in use by another run");
  EXPECT_EQ(text_of_file(scratch_ / "out/resolved.toml"), resolved);
  EXPECT_EQ(text_of_file(scratch_ / "out/log.txt").find("in use"), std::string::npos);
  first.send(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 75);
}

// Otherwise two runs would write into one directory, or one run into two.
TEST_F(RunDirectoryTest, ARunWhoseDirectoryIsTakenAwayStopsAtItsNextSave) {
  const struct {
    const char *change, *words;
  } kCases[] = {
      {"rm -r out/checkpoints", "'out/checkpoints' was removed while this run held it"},
      {"rm -r out/checkpoints; mkdir out/checkpoints", "'out/checkpoints' was removed, and replaced by another,"},
      {"rm out/checkpoints/.lock; touch out/checkpoints/.lock", "'out/checkpoints/.lock' was removed, and replaced"},
      {"mv out away", "/away' while this run held it"},
      {"mv out away; mkdir out", "/away', and replaced by another, while this run held it"},
      {"rm -r out", "'out' was removed while this run held it"},
  };
  for (const auto& [change, words] : kCases) {
    Process run(command({"run.max_steps=100000", "data.cache_dir=cache"}), scratch_.path());
    ASSERT_TRUE(run.wait_for("step 2/")) << run.output_so_far();
    ASSERT_EQ(shell(change).exit_code, 0);
    if (std::string_view(change).starts_with("rm -r out/checkpoints")) {
      fs::create_directory(scratch_ / "elsewhere");
      const Outcome second =
          run_process({"/bin/sh", "-c", "cd .. && exec \"$0\" train run.toml", program()}, scratch_ / "elsewhere");
      expect_refused(second, 7, "is in use by another run");
      fs::remove_all(scratch_ / "elsewhere");
    }
    run.send(SIGUSR1);
    if (!run.wait_for("this run held it")) run.send(SIGKILL);
    const Outcome stopped = run.wait();
    EXPECT_EQ(stopped.exit_code, 7) << change << ": " << stopped.output;
    EXPECT_HAS(stopped.output, words);
    const std::string left = std::string_view(change).starts_with("mv") ? "away" : "out";
    if (std::string_view(change) != "rm -r out") EXPECT_GE(losses(left).size(), 2u);
    EXPECT_FALSE(fs::exists(scratch_ / "out/final"));
    fs::remove_all(scratch_ / "out");
    fs::remove_all(scratch_ / "away");
  }
}

TEST_F(RunDirectoryTest, WhatARunWritesIsNoMoreOpenThanItsSources) {
  const std::string umask = "umask 022; ";
  const std::string settings =
      " log.sinks=console,jsonl,csv,tensorboard log.trace=2,3 sample.prompts='[\"line\"]' sample.every_steps=2 "
      "sample.max_new_tokens=2 run.max_steps=3";
  const auto modes = [&](const std::string& folder) {
    std::map<unsigned, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(scratch_ / folder))
      if (entry.is_regular_file() && entry.path().filename() != ".lock" && !entry.path().string().ends_with(".lock"))
        found[static_cast<unsigned>(entry.status().permissions())] += " " + entry.path().string();
    return found;
  };
  const auto expect_modes = [&](const std::string& folder, unsigned mode) {
    for (const auto& [found, files] : modes(folder)) EXPECT_EQ(found, mode) << files;
  };
  const Outcome open = shell(umask + "\"$CHASSIS\" train run.toml" + settings);
  ASSERT_EQ(open.exit_code, 0) << open.output;
  expect_modes("out", 0644);
  expect_modes("cache", 0644);
  // The file of the texts, then that of the configuration.
  for (const char* source : {"corpus.txt", "run.toml"}) {
    fs::remove_all(scratch_ / "out");
    fs::remove_all(scratch_ / "cache");
    fs::permissions(scratch_ / source, fs::perms(0600));
    const Outcome run = shell(umask + "\"$CHASSIS\" train run.toml" + settings);
    ASSERT_EQ(run.exit_code, 0) << run.output;
    expect_modes("out", 0600);
    expect_modes("cache", source == std::string("run.toml") ? 0644 : 0600);
    ASSERT_EQ(shell(umask + "\"$CHASSIS\" report out --html report.html").exit_code, 0);
    EXPECT_EQ(static_cast<unsigned>(fs::status(scratch_ / "report.html").permissions()), 0600u);
    fs::remove(scratch_ / "report.html");
    fs::permissions(scratch_ / source, fs::perms(0644));
  }
  fs::permissions(scratch_ / "corpus.txt", fs::perms(0600));
  write_text(scratch_ / "open.jsonl", "{\"prompt\": \"line\"}\n");
  write_text(scratch_ / "prompts.jsonl", "{\"prompt\": \"line\"}\n");
  fs::permissions(scratch_ / "prompts.jsonl", fs::perms(0600));
  const std::string generate = "generate run.toml generate.max_new_tokens=2 --prompts ";
  for (const std::string& verb :
       {std::string("data preview run.toml --html page.html"), generate + "prompts.jsonl --out answers.jsonl",
        generate + "open.jsonl --out of_private_weights.jsonl"}) {
    const Outcome run = shell(umask + "\"$CHASSIS\" " + verb);
    EXPECT_EQ(run.exit_code, 0) << run.output;
  }
  for (const char* name : {"page.html", "answers.jsonl", "of_private_weights.jsonl"})
    EXPECT_EQ(static_cast<unsigned>(fs::status(scratch_ / name).permissions()), 0600u) << name;
}

TEST_F(RunDirectoryTest, FilesInTheWayOfItsOutputsAreFoundBeforeTheFirstStep) {
  fs::create_directories(scratch_ / "a/final");
  write_text(scratch_ / "a/final/thesis.txt", "mine");
  expect_refused(train({"run.output_dir=a"}), 7, "a/final' is in the way");
  EXPECT_EQ(text_of_file(scratch_ / "a/final/thesis.txt"), "mine");

  fs::create_directories(scratch_ / "b/checkpoints");
  write_text(scratch_ / "b/checkpoints/step-000006", "mine");
  expect_refused(train({"run.output_dir=b"}), 7, "b/checkpoints/step-000006");
  EXPECT_EQ(text_of_file(scratch_ / "b/checkpoints/step-000006"), "mine");

  fs::create_directories(scratch_ / "c/export-step-000003");
  write_text(scratch_ / "c/export-step-000003/mine", "mine");
  expect_refused(train({"run.output_dir=c", "export.when=every", "checkpoint.every_steps=3"}), 7,
                 "c/export-step-000003");
}

TEST_F(RunDirectoryTest, FoldersThatCannotBeWrittenAreFoundBeforeTheFirstStep) {
  ASSERT_EQ(train({"run.max_steps=2"}).exit_code, 0);
  fs::permissions(scratch_ / "out/final", fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused(train_unprivileged({}), 7, "cannot write into 'out/final'");
  fs::permissions(scratch_ / "out/final", fs::perms::owner_all);
  fs::permissions(scratch_ / "out", fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused(train_unprivileged({}), 7, "cannot write into 'out'");
  fs::permissions(scratch_ / "out", fs::perms::owner_all);
}

TEST_F(RunDirectoryTest, AnUnreadableFileForTheExportIsFoundBeforeTheFirstStep) {
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  fs::rename(scratch_ / "out/final", scratch_ / "model");
  fs::remove(scratch_ / "model/manifest.json");
  write_text(scratch_ / "model/generation_config.json", "{}\n");
  ASSERT_EQ(shell("sed -i -e '/^config/d' -e 's/^plugin = \"llama\"/path = \"model\"/' run.toml").exit_code, 0);
  fs::permissions(scratch_ / "model/generation_config.json", fs::perms::none);
  expect_refused(train_unprivileged({"run.output_dir=tuned"}), 7, "generation_config.json");
  // /proc/self/mem can be opened, but not read.
  fs::remove(scratch_ / "model/generation_config.json");
  fs::create_symlink("/proc/self/mem", scratch_ / "model/generation_config.json");
  expect_refused(train({"run.output_dir=tuned"}), 7, "generation_config.json");
}

TEST_F(RunDirectoryTest, RanksInDifferentFoldersAreFoundBeforeTheFirstStep) {
  const std::string port = std::to_string(unused_port());
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    const std::string home = scratch_ / (std::string("home") + rank);
    fs::create_directory(home);
    fs::copy_file(scratch_ / "corpus.txt", home + "/corpus.txt");
    write_text(home + "/run.toml", text_of_file(scratch_ / "run.toml") + "[[parallel]]\nplugin = \"ddp\"\n");
    ranks.push_back(
        std::make_unique<Process>(command({"run.threads=1"}), home,
                                  std::vector<std::pair<std::string, std::string>>{{"RANK", rank},
                                                                                   {"WORLD_SIZE", "2"},
                                                                                   {"LOCAL_RANK", rank},
                                                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                                                   {"MASTER_ADDR", "127.0.0.1"},
                                                                                   {"MASTER_PORT", port}}));
  }
  const Outcome first = ranks[0]->wait(), second = ranks[1]->wait();
  EXPECT_EQ(first.exit_code, 2) << first.output;
  EXPECT_EQ(second.exit_code, 2) << second.output;
  EXPECT_HAS(second.output, "run.output_dir is not the same directory on all ranks: rank 0 writes to '" +
                                fs::canonical(scratch_.path()).string() + "/home0/out', rank 1 to '");
  EXPECT_TRUE(files("home0/out").empty()) << "nothing is left of the start";
}

TEST_F(RunDirectoryTest, OnlyMetricsOfRepeatedStepsAreDropped) {
  ASSERT_EQ(train({"run.max_steps=4", "checkpoint.every_steps=2", "checkpoint.keep_last=0"}).exit_code, 0);
  const std::string path = scratch_ / "out/metrics.jsonl";
  std::istringstream lines(text_of_file(path));
  std::string damaged, line;
  for (int i = 1; std::getline(lines, line); ++i) {
    damaged += line + "\n";
    if (i == 1) damaged += "{\"step\": null}\n{\"step\": 1e400}\n\xff\n";
  }
  write_text(path, damaged);
  const Outcome run = train({"run.resume=out/checkpoints/step-000002", "run.max_steps=4"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "metrics.jsonl: steps 3 to 4 (2 lines) are dropped, since the run continues from step 2");
  const std::string now = text_of_file(path);
  const std::string up_to_damage = damaged.substr(0, damaged.find("\xff\n") + 2);
  EXPECT_TRUE(now.starts_with(up_to_damage)) << "damaged lines stay as they are: " << now;
}

TEST_F(RunDirectoryTest, DifferencesFromTheResumedRunAreListed) {
  ASSERT_EQ(train({"run.max_steps=2", "schedule.name=cosine"}).exit_code, 0);
  const Words other = {"run.max_steps=8", "schedule.name=cosine",      "optimizer.lr=0.5",  "optimizer.beta2=0.5",
                       "train.seq_len=8", "train.global_batch_size=2", "log.every_steps=2", "schedule.warmup_steps=3"};
  Words strict = other;
  strict.push_back("run.strict=true");
  const Outcome refused = train(strict);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  const Outcome run = train(other);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  for (const char* line :
       {"optimizer.lr was 0.01, is 0.5", "train.seq_len was 16, is 8", "train.global_batch_size was 4, is 2",
        "schedule.warmup_steps was 0, is 3", "optimizer.beta2 was ",
        "learning rate of step 3 would have been 0, is 0.5: the schedule \"cosine\" ended at step 2, "
        "now ends at step 8"}) {
    EXPECT_HAS(run.output, std::string("warning: differs from the run that was saved: ") + line);
    EXPECT_HAS(refused.output, std::string("\n  ") + line);
  }
  EXPECT_HAS(refused.output, "run.strict: 6 settings differ from those of out/checkpoints/step-000002:");
  EXPECT_HAS(run.output, "warning: differs from the run that was saved (6 times)");
  EXPECT_HAS(run.output, "\n  log.every_steps was 1, is 2");
  EXPECT_HAS(run.output, "\n  run.max_steps was 2, is 8\nwarning") << "nothing else";
}

TEST_F(RunDirectoryTest, ABatchSizeThatChangesWithTheRanksIsReported) {
  ASSERT_EQ(shell("sed -i -e '/^global_batch_size/d' run.toml").exit_code, 0);
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  write_text(scratch_ / "run.toml", text_of_file(scratch_ / "run.toml") + "[[parallel]]\nplugin = \"ddp\"\n");
  const Outcome run = train({"run.max_steps=2", "--nproc", "2"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "warning: differs from the run that was saved: rows of a step were 2, are 4");
}

TEST_F(RunDirectoryTest, AnotherBuildOfAPluginIsReported) {
  ASSERT_EQ(train({"run.max_steps=2"}).exit_code, 0);
  fs::create_directory(scratch_ / "plugins");
  const std::string plugin = scratch_ / "plugins/adamw.so";
  fs::copy_file(CHASSIS_TEST_PLUGIN_DIR "/adamw.so", plugin);
  write_text(plugin, text_of_file(plugin) + "another build");
  fs::permissions(scratch_ / "plugins", fs::perms::owner_all);
  fs::permissions(plugin, fs::perms::owner_all);
  const Outcome run = train({"--plugin-path", "plugins"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "differs from the run that was saved: plugin adamw was ");
  const Outcome strict = train({"run.max_steps=7", "run.strict=true"});
  EXPECT_EQ(strict.exit_code, 2) << strict.output;
  EXPECT_HAS(strict.output, "plugin adamw was ");
}

TEST_F(RunDirectoryTest, AnUnchangedResumeGivesNoWarning) {
  ASSERT_EQ(train({"run.max_steps=2"}).exit_code, 0);
  const Outcome run = train({"run.strict=true", "run.memory_check=warn"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_EQ(run.output.find("warning"), std::string::npos) << run.output;
}

TEST_F(RunDirectoryTest, TheResumeHintOfAStoppedRunWorks) {
  for (const std::string resume : {"auto", "never"}) {
    const Words words = {"run.output_dir=" + resume, "run.resume=" + resume, "run.max_steps=100000"};
    Process run(command(words), scratch_.path());
    ASSERT_TRUE(run.wait_for("step 2/")) << run.output_so_far();
    run.send(SIGINT);
    const Outcome stopped = run.wait();
    ASSERT_EQ(stopped.exit_code, 75) << stopped.output;
    Words again = {"run.output_dir=" + resume, "run.resume=" + resume,
                   "run.max_steps=" + std::to_string(losses(resume).size() + 2)};
    if (resume == "auto") {
      EXPECT_HAS(stopped.output, "resume with the same command; exit code 75");
    } else {
      EXPECT_HAS(stopped.output, "resume with the same command plus run.resume=auto");
      again.push_back("run.resume=auto");
    }
    const Outcome resumed = train(again);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_HAS(resumed.output, "resumed from ");
  }
}

TEST_F(RunDirectoryTest, ARunThatSavesWeightsOnlyGivesNoResumeHint) {
  Process run(command({"checkpoint.contents=model_only", "run.max_steps=100000"}), scratch_.path());
  ASSERT_TRUE(run.wait_for("step 2/")) << run.output_so_far();
  run.send(SIGTERM);
  const Outcome stopped = run.wait();
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_HAS(stopped.output, "holds only weights");
  EXPECT_EQ(stopped.output.find("resume with the same command"), std::string::npos) << stopped.output;
}

TEST_F(RunDirectoryTest, TheQuickstartIsResumedByTheCommandThatStartedIt) {
  const std::string quickstart = CHASSIS_TEST_SOURCE_DIR "/configs/quickstart/cpu.toml";
  fs::create_directory(scratch_ / "tokenizer");
  write_text(scratch_ / "tokenizer/words.txt", "");
  const Words words = {program(),
                       "train",
                       quickstart,
                       "data.train.0.path=corpus.txt",
                       "tokenizer.plugin=words",
                       "tokenizer.path=tokenizer",
                       "--plugin-path",
                       CHASSIS_TEST_STUB_DIR,
                       "attention.plugin=naive",
                       "kernels.plugins=[\"reference\"]",
                       "train.seq_len=16",
                       "model.config.hidden_size=24",
                       "model.config.intermediate_size=32",
                       "schedule.warmup_steps=2",
                       "log.every_steps=1"};
  Process run(words, scratch_.path());
  ASSERT_TRUE(run.wait_for("step 2/")) << run.output_so_far();
  run.send(SIGINT);
  const Outcome stopped = run.wait();
  ASSERT_EQ(stopped.exit_code, 75) << stopped.output;
  const size_t done = losses("out/quickstart").size();
  EXPECT_HAS(stopped.output, "resume with the same command; exit code 75");
  Words again = words;
  const size_t last = done + 1;
  again.push_back("run.max_steps=" + std::to_string(last));
  const Outcome resumed = run_process(again, scratch_.path());
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "at step " + std::to_string(done));
  EXPECT_EQ(losses("out/quickstart").size(), last);
}

TEST_F(RunDirectoryTest, AFullDiskDoesNotEndARunWithOnErrorWarn) {
  ASSERT_EQ(train({"run.output_dir=other"}).exit_code, 0) << "the data is prepared";
  // No file may grow beyond 20 KiB: the log and the metrics fill up, and nothing can be saved.
  const Outcome run = shell(
      "(ulimit -f 40; \"$CHASSIS\" train run.toml run.max_steps=200 checkpoint.on_error=warn "
      "checkpoint.every_steps=100 export.when=never; echo exit code $?) 2>&1 | cat");
  EXPECT_HAS(run.output, "exit code 7");
  EXPECT_HAS(run.output, "done at step 200 of 200");
  EXPECT_HAS(run.output, "warning: lines missing from metrics.jsonl (");
  EXPECT_HAS(run.output, "warning: lines that the log file did not take (");
  EXPECT_HAS(run.output, "warning: save failed (");
  EXPECT_HAS(run.output, "step 200 was trained, but could not be saved");
  for (const Json& line : metrics("out")) EXPECT_TRUE(line.contains("loss")) << "no half lines";
}

}  // namespace
}  // namespace chassis::test
