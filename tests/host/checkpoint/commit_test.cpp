// The commit protocol: names, locks, retention, leftovers, replacement, and foreign directories.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "fixture.hpp"
#include "host/base/log.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/checkpoint/staged_directory.hpp"

namespace chassis {
namespace {

using namespace testing;

const BucketPair& buckets() {
  static const BucketPair pair(4096);
  return pair;
}

void save_step(const std::string& root, int64_t step, uint64_t seed = 1) {
  Model model;
  model.add(Descriptor::plain("w", Dtype::f32, {100}), seed);
  CheckpointWriter(native(), buckets())
      .save(plan_save(model.save_tensors(), {}, native()), request_for(model, root, step_directory_name(step), step));
}
std::vector<std::string> names(const std::string& root) {
  std::vector<std::string> out;
  for (const auto& info : list_checkpoints(root)) out.push_back(info.name);
  return out;
}
std::vector<std::string> entries(const std::string& path) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(path)) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Commit, LeavesNothingButTheCheckpoint) {
  const TemporaryDirectory dir;
  save_step(dir.path(), 500);
  EXPECT_EQ(entries(dir.path()), std::vector<std::string>{"step-000500"});
  EXPECT_EQ(entries(dir / "step-000500"), (std::vector<std::string>{"manifest.json", "sharded"}));
}

TEST(Commit, PassesItsStagesInOrder) {
  const TemporaryDirectory dir;
  const Model model = small_model();
  SaveRequest request = request_for(model, dir.path(), "x");
  std::vector<std::string> stages;
  request.on_stage = [&](const char* stage) {
    stages.push_back(stage);
    EXPECT_EQ(fs::exists(dir / "x"), std::string(stage) == "renamed");
  };
  CheckpointWriter(native(), buckets()).save(plan_save(model.save_tensors(), {}, native()), request);
  EXPECT_EQ(stages, (std::vector<std::string>{"staged", "allocated", "streamed", "written", "manifest", "synced",
                                              "unmarked", "renamed"}));
}

TEST(Commit, ReplacesItsOwnCheckpointOfTheSameName) {
  const TemporaryDirectory dir;
  save_step(dir.path(), 1, 1);
  const std::string before = read_file(dir / "step-000001/manifest.json");
  save_step(dir.path(), 1, 2);
  EXPECT_NE(read_file(dir / "step-000001/manifest.json"), before);
  EXPECT_EQ(entries(dir.path()), std::vector<std::string>{"step-000001"});
}

TEST(Commit, RefusesToReplaceForeignFiles) {
  const TemporaryDirectory dir;
  fs::create_directories(dir / "step-000001");
  write_text(dir / "step-000001/thesis.txt", "years of work");
  const std::string text = error_of([&] { save_step(dir.path(), 1); });
  EXPECT_NE(text.find("is in the way: it has no manifest.json"), std::string::npos) << text;
  EXPECT_EQ(read_file(dir / "step-000001/thesis.txt"), "years of work");

  save_step(dir.path(), 2);
  write_text(dir / "step-000002/notes.txt", "keep");
  EXPECT_NE(error_of([&] { save_step(dir.path(), 2); }).find("it holds 'notes.txt' that this program did not write"),
            std::string::npos);
  EXPECT_NE(error_of([&] { delete_checkpoint(dir / "step-000002"); }).find("notes.txt"), std::string::npos);
  EXPECT_EQ(entries(dir.path()), (std::vector<std::string>{"step-000001", "step-000002"}));

  write_text(dir / "step-000003", "a file");
  EXPECT_NE(error_of([&] { save_step(dir.path(), 3); }).find("is not a directory"), std::string::npos);
  fs::create_directory_symlink(dir / "step-000001", dir / "step-000004");
  EXPECT_NE(error_of([&] { save_step(dir.path(), 4); }).find("is not a directory"), std::string::npos);
}

TEST(Commit, RefusesNamesThatLeaveTheDirectory) {
  const TemporaryDirectory dir;
  const Model model = small_model();
  for (const char* name : {"../x", "/tmp/x", "a/b", ".hidden", ""}) {
    EXPECT_NE(error_of([&] {
                CheckpointWriter(native(), buckets())
                    .save(plan_save(model.save_tensors(), {}, native()), request_for(model, dir.path(), name));
              }).find("is not a valid name for a checkpoint"),
              std::string::npos);
  }
  SaveRequest request = request_for(model, dir.path(), "x");
  request.text_files = {{"../evil", "x"}};
  EXPECT_NE(error_of([&] {
              CheckpointWriter(native(), buckets()).save(plan_save(model.save_tensors(), {}, native()), request);
            }).find("is not a valid path"),
            std::string::npos);
  request.text_files = {{"manifest.json", "x"}};
  EXPECT_NE(error_of([&] {
              CheckpointWriter(native(), buckets()).save(plan_save(model.save_tensors(), {}, native()), request);
            }).find("two files"),
            std::string::npos);
  EXPECT_TRUE(entries(dir.path()).empty());
}

TEST(CheckpointRoot, RefusesASecondJobInTheSameDirectory) {
  const TemporaryDirectory dir;
  CheckpointRoot first(dir / "checkpoints");
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = error_of([&] { CheckpointRoot second(dir / "checkpoints"); });
    ::_exit(text.find("is in use by another run, process " + std::to_string(::getppid())) != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(CheckpointRoot, CanBeTakenAgainAfterItsHolderIsGone) {
  const TemporaryDirectory dir;
  { CheckpointRoot first(dir / "checkpoints"); }
  CheckpointRoot second(dir / "checkpoints");
}

TEST(CheckpointRoot, NamesTheLatestAtomically) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  EXPECT_FALSE(newest_checkpoint(dir.path()).has_value());
  save_step(dir.path(), 1);
  save_step(dir.path(), 2);
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000002");
  root.set_latest("step-000001");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-000001");
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001");
  root.set_latest("step-000002");
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000002");
  fs::remove(dir / "latest");
  write_text(dir / "latest", "step-000001\n");  // as on a file system without links
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001");
  EXPECT_EQ(names(dir.path()), (std::vector<std::string>{"step-000001", "step-000002"}));
}

TEST(CheckpointRoot, IgnoresAHostileLatest) {
  const TemporaryDirectory dir;
  save_step(dir.path(), 1);
  for (const char* target : {"../../etc", "/etc", "nowhere", "."}) {
    fs::remove(dir / "latest");
    fs::create_symlink(target, dir / "latest");
    EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001") << target;
  }
  fs::remove(dir / "latest");
  write_text(dir / "latest", std::string(100'000, 'x'));
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001");
}

// As cp -rL copies a folder of checkpoints.
TEST(CheckpointRoot, TriesTheOthersBesideAFolderInPlaceOfLatest) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 2; ++step) save_step(dir.path(), step);
  fs::copy(dir / "step-000002", dir / "latest", fs::copy_options::recursive);
  EXPECT_EQ(newest_checkpoint(dir.path())->step, 2);
  fs::remove(dir / "latest/manifest.json");
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000002");
  fs::remove_all(dir / "step-000002");
  fs::copy(dir / "step-000001", dir / "latest", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  EXPECT_EQ(newest_checkpoint(dir.path())->step, 1);
  save_step(dir.path(), 3);
  root.set_latest("step-000003");
  EXPECT_EQ(fs::read_symlink(dir / "latest"), "step-000003");
  EXPECT_TRUE(fs::exists(dir / "latest.replaced/manifest.json")) << "it is kept";
}

TEST(CheckpointRoot, SkipsADamagedCheckpointWithAWarning) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 3; ++step) save_step(dir.path(), step);
  root.set_latest("step-000003");
  fs::resize_file(dir / "step-000003/sharded/shard-00001-model-00001-of-00001.safetensors", 100);
  fs::remove(dir / "step-000002/manifest.json");
  log::reset_counted_warnings();
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001");
  ASSERT_EQ(counted_warnings().size(), 2u);
  EXPECT_EQ(counted_warnings()[0].first, "checkpoint-damaged step-000003");
  EXPECT_EQ(counted_warnings()[1].first, "checkpoint-damaged step-000002") << "it has no manifest";
}

TEST(CheckpointRoot, SetsADamagedCheckpointAsideUnderANameThatIsFree) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int round = 0; round < 2; ++round) {
    save_step(dir.path(), 1);
    EXPECT_EQ(root.set_aside("step-000001"), round == 0 ? "step-000001.damaged" : "step-000001.damaged-2");
  }
  EXPECT_EQ(root.set_aside("step-000001"), "") << "it does not exist";
  save_step(dir.path(), 2);
  save_step(dir.path(), 3);
  EXPECT_EQ(root.prune(1), std::vector<std::string>{"step-000002"});
  EXPECT_EQ(names(dir.path()),
            (std::vector<std::string>{"step-000001.damaged", "step-000001.damaged-2", "step-000003"}));
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000003");
}

TEST(CheckpointRoot, CountsOnlyIntactCheckpointsWhenDefectsAreKnown) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 4; ++step) save_step(dir.path(), step);
  const auto defect_of = [](const CheckpointInfo& info) { return info.step == 4 ? "damaged" : std::string(); };
  EXPECT_EQ(root.prune(1, 0, defect_of), (std::vector<std::string>{"step-000001", "step-000002"}));
  EXPECT_EQ(names(dir.path()), (std::vector<std::string>{"step-000003", "step-000004"}));
}

TEST(CheckpointRoot, NeitherCountsNorDeletesCopiesUnderOtherNames) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 3; ++step) save_step(dir.path(), step);
  for (const char* copy : {"step-3", "step-000003-copy", "best"})
    fs::copy(dir / (*copy == 'b' ? "step-000002" : "step-000003"), dir / copy, fs::copy_options::recursive);
  EXPECT_EQ(root.prune(2), std::vector<std::string>{"step-000001"});
  EXPECT_EQ(names(dir.path()),
            (std::vector<std::string>{"best", "step-000002", "step-000003", "step-000003-copy", "step-3"}));
}

TEST(CheckpointRoot, SkipsKeepsAndDoesNotReplaceACheckpointUnderTheNameOfAnotherStep) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 2; ++step) save_step(dir.path(), step);
  fs::rename(dir / "step-000002", dir / "step-000009");
  log::reset_counted_warnings();
  const std::string why = "its name says step 9, its manifest.json says step 2";
  EXPECT_EQ(list_checkpoints(dir.path()).back().defect, why);
  EXPECT_EQ(newest_checkpoint(dir.path())->name, "step-000001");
  save_step(dir.path(), 3);
  EXPECT_EQ(root.prune(1), std::vector<std::string>{"step-000001"});
  EXPECT_NE(error_of([&] { save_step(dir.path(), 9); }).find("step-000009' is in the way: " + why), std::string::npos);
  EXPECT_TRUE(fs::exists(dir / "step-000009/manifest.json"));
}

TEST(CheckpointRoot, RefusesALockFileThatItDidNotWrite) {
  const TemporaryDirectory dir;
  write_text(dir / ".lock", "precious");
  EXPECT_NE(error_of([&] { CheckpointRoot root(dir.path()); }).find("this program did not write it"),
            std::string::npos);
  EXPECT_EQ(read_file(dir / ".lock"), "precious");
}

TEST(Commit, RefusesToReplaceARunCheckpointWithAnExportOrImport) {
  const TemporaryDirectory dir;
  save_step(dir.path(), 1);
  const std::string before = read_file(dir / "step-000001/manifest.json");
  const Model model = small_model();
  SaveRequest request = request_for(model, dir.path(), "step-000001");
  request.resumable = false;
  const auto save = [&] {
    const SavePlan plan = plan_save(model.save_tensors(), {}, native());
    return error_of([&] { CheckpointWriter(native(), buckets()).save(plan, request); });
  };
  EXPECT_NE(save().find("step-000001' holds a checkpoint of a run, step 1"), std::string::npos);
  request.resumable = true;
  request.about = {{"imported", Json::object()}};
  EXPECT_NE(save().find("step-000001' holds a checkpoint of a run, step 1"), std::string::npos);
  EXPECT_EQ(read_file(dir / "step-000001/manifest.json"), before);
  request.name = "imported";
  EXPECT_EQ(save(), "no error");
  request.resumable = false;
  EXPECT_EQ(save(), "no error") << "an export may replace an export";
}

TEST(Commit, GivesFilesAtMostThePermissionsOfTheirSources) {
  const TemporaryDirectory dir;
  const Model model = small_model();
  fs::create_directories(dir / "base");
  for (const char* name : {"tokenizer.json", "vocab.json"}) write_text(dir / std::string("base/") + name, "{}");
  fs::permissions(dir / "base/tokenizer.json", fs::perms(0600));
  SaveRequest request = request_for(model, dir.path(), "open");
  request.carried_files = files_to_copy(dir / "base");
  const auto mode = [&](const std::string& path) {
    return static_cast<unsigned>(fs::status(dir / path).permissions());
  };
  CheckpointWriter(huggingface(), buckets()).save(plan_save(model.save_tensors(), {}, huggingface()), request);
  EXPECT_EQ(mode("open/tokenizer.json"), 0600u);
  EXPECT_EQ(mode("open/vocab.json"), 0644u);
  EXPECT_EQ(mode("open/model.safetensors"), 0644u);
  request = request_for(model, dir.path(), "closed");
  request.mode = shared_file_mode(dir / "base");
  request.text_files = {{"config.json", "{}"}};
  CheckpointWriter(huggingface(), buckets()).save(plan_save(model.save_tensors(), {}, huggingface()), request);
  for (const char* name : {"model.safetensors", "config.json", "manifest.json"})
    EXPECT_EQ(mode(std::string("closed/") + name), 0600u) << name;
}

TEST(OutputDirectory, RefusesToOverwriteARun) {
  const TemporaryDirectory dir;
  const std::string checkpoints = dir / "run/checkpoints", step = checkpoints + "/step-000001";
  save_step(checkpoints, 1);
  { CheckpointRoot root(checkpoints); }
  const auto refusal = [&](const std::string& path, bool becomes_resumable = false) {
    return error_of([&] { OutputDirectory(path, {dir / "source"}, becomes_resumable); });
  };
  const auto of_run = [&](const std::string& path) {
    return error_of([&] { OutputDirectory(dir / path, {step, ""}, false); });
  };
  for (const std::string& path : {step, step + "/", checkpoints + "/new", dir / "run/../run/checkpoints/new"})
    EXPECT_NE(refusal(path).find("it lies among the checkpoints of a run"), std::string::npos) << path;
  EXPECT_NE(refusal(step + "/hf").find("it lies inside the checkpoint"), std::string::npos);
  EXPECT_NE(refusal(dir / "source/").find("it is the directory that is read"), std::string::npos);
  fs::create_directory_symlink(checkpoints, dir / "link");
  EXPECT_NE(refusal(dir / "link/new").find("it lies among the checkpoints of a run"), std::string::npos);
  EXPECT_EQ(refusal(checkpoints + "/step-000002", true), "no error") << "an import to resume from";
  EXPECT_NE(refusal(dir / "run/final").find("it lies in the directory of another run, '"), std::string::npos);
  EXPECT_NE(refusal(dir / "run/final/deep").find("of another run"), std::string::npos);
  EXPECT_EQ(of_run("run/final"), "no error");
  EXPECT_EQ(of_run("run/export-bf16"), "no error");
  for (const char* path : {"run/handed", "run/deep/final"})
    EXPECT_NE(of_run(path).find("it lies in the directory of the run '"), std::string::npos) << path;
  fs::create_directories(dir / "bare");
  std::ofstream(dir / "bare/run.json") << "{\"identity\": {}}";
  EXPECT_NE(refusal(dir / "bare/final").find("of another run"), std::string::npos) << "its checkpoints are gone";
  EXPECT_EQ(refusal(dir / "not/there/yet"), "no error");
  CheckpointRoot in_progress(checkpoints);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(of_run("run/final").find("is in use by another run") != std::string::npos ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(CheckpointRoot, KeepsTheNewestAndTheLatest) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 5; ++step) save_step(dir.path(), step);
  root.set_latest("step-000001");
  EXPECT_TRUE(root.prune(0).empty());
  EXPECT_EQ(root.prune(2), (std::vector<std::string>{"step-000002", "step-000003"}));
  EXPECT_EQ(names(dir.path()), (std::vector<std::string>{"step-000001", "step-000004", "step-000005"}));
}

TEST(CheckpointRoot, DeletesNothingThatItDidNotMake) {
  const TemporaryDirectory dir;
  CheckpointRoot root(dir.path());
  for (int step = 1; step <= 3; ++step) save_step(dir.path(), step);
  write_text(dir / "step-000001/notes.txt", "mine");
  fs::create_directories(dir / "step-000000");
  write_text(dir / "step-000000/data", "mine");
  log::reset_counted_warnings();
  EXPECT_EQ(root.prune(1), std::vector<std::string>{"step-000002"});
  EXPECT_EQ(counted_warnings()[0].first, "checkpoint-kept");
  EXPECT_TRUE(fs::exists(dir / "step-000000/data"));
  EXPECT_TRUE(fs::exists(dir / "step-000001/notes.txt"));
}

TEST(CheckpointRoot, RemovesOnlyTheRemainsOfKilledSaves) {
  const TemporaryDirectory dir;
  save_step(dir.path(), 1);
  const std::string dead = dir / ".step-000002.inprogress-0123456789abcdef",
                    empty = dir / ".step-000003.inprogress-0123456789abcdef";
  const std::string deleting = dir / ".step-000000.deleting-0123456789abcdef",
                    foreign = dir / ".step-000004.inprogress-0123456789abcdef";
  const std::string replaced = dir / ".step-000009.replaced-0123456789abcdef",
                    alive = dir / ".step-000005.inprogress-0123456789abcdef";
  for (const auto& path : {dead, empty, foreign, alive})
    fs::create_directories(path + (path == dead ? "/sharded" : ""));
  write_text(dead + "/.inprogress", "");
  write_text(dead + "/sharded/x", "partial");
  write_text(foreign + "/precious", "x");
  write_text(alive + "/.inprogress", "");
  fs::copy(dir / "step-000001", deleting, fs::copy_options::recursive);
  fs::copy(dir / "step-000001", replaced, fs::copy_options::recursive);
  fs::create_directories(dir / ".my-own-directory");
  const int lock = ::open((alive + "/.inprogress").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);

  const CheckpointRoot root(dir.path());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_FALSE(fs::exists(deleting));
  EXPECT_FALSE(fs::exists(replaced));
  EXPECT_TRUE(fs::exists(dir / "step-000009/manifest.json"));  // restored
  EXPECT_TRUE(fs::exists(foreign + "/precious"));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(dir / ".my-own-directory"));
  EXPECT_TRUE(fs::exists(dir / "step-000001/manifest.json"));
  ::close(lock);
}

TEST(StagedDirectory, RefusesWhatAnotherProcessIsWriting) {
  const TemporaryDirectory dir;
  const StagedDirectory first(dir.path(), "final");
  std::string text = "accepted";
  try {
    const StagedDirectory second(dir.path(), "final");
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("/final' is being written by another process, in '" + first.path() + "'"), text.npos) << text;
  EXPECT_TRUE(fs::exists(first.path() + "/.inprogress"));
  EXPECT_EQ(entries(dir.path()).size(), 1u) << "the second one is removed";
  const StagedDirectory other(dir.path(), "best");
}

TEST(Commit, TheCheckpointThatBestNamesIsKept) {
  const TemporaryDirectory dir;
  const std::string checkpoints = dir / "checkpoints";
  CheckpointRoot root(checkpoints);
  for (int step = 1; step <= 3; ++step) save_step(checkpoints, step);
  root.set_latest("step-000003");
  EXPECT_EQ(root.best(), "");
  root.set_best("step-000001");
  EXPECT_EQ(fs::read_symlink(dir / "best"), "checkpoints/step-000001");
  EXPECT_TRUE(is_checkpoint(dir / "best"));
  EXPECT_EQ(root.prune(1), std::vector<std::string>{"step-000002"});
  root.set_best("step-000003");
  EXPECT_EQ(root.prune(1), std::vector<std::string>{"step-000001"});
  // On file systems without links, a file takes the place of the link.
  root.set_best("");
  EXPECT_FALSE(fs::exists(fs::symlink_status(dir / "best")));
  write_text(dir / "best", "checkpoints/step-000003\n");
  EXPECT_EQ(root.best(), "step-000003");
  fs::remove(dir / "best");
  fs::create_symlink("elsewhere/step-000003", dir / "best");
  EXPECT_EQ(root.best(), "");
}

}  // namespace
}  // namespace chassis
