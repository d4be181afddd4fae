// The real program: what `chassis ckpt` writes and deletes, and which weights the other verbs read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::ScratchDirectory;

class CkptVerb : public testing::Test {
 protected:
  CkptVerb() {
    fs::copy(CHASSIS_TEST_SOURCE_DIR "/tests/golden/run/base", scratch_.path(), fs::copy_options::recursive);
  }
  Outcome chassis(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
    return test::run_process(words, scratch_.path());
  }
  std::string run(const std::vector<std::string>& words, int exit_code = 0) {
    const Outcome outcome = chassis(words);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  // Makes model/, a model directory as other tools provide it.
  void make_model() {
    run({"train", "model.toml"});
    fs::rename(scratch_ / "model-run/final", scratch_ / "model");
    fs::remove(scratch_ / "model/manifest.json");
    for (const char* name : {"tokenizer.json", "chat_template.jinja", "generation_config.json"})
      test::write_text(*this / (std::string("model/") + name), std::string("{\"is\": \"") + name + "\"}");
    std::string rows;
    for (int i = 0; i < 40; ++i) rows += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
    test::write_text(*this / "rows.jsonl", rows);
  }
  // Trains from model/, on data that its tokenizer made.
  std::string run_from_model(std::vector<std::string> words) {
    words.insert(words.begin(), {"train", "pretrained.toml", "data.train.0.path=rows.jsonl",
                                 "data.train.0.format=tokens", "tokenizer.plugin="});
    return run(words);
  }
  std::string operator/(const std::string& path) const { return scratch_ / path; }
  // Changes one byte at a distance from the end: in the last tensor, or in the header.
  void damage(const std::string& checkpoint, std::streamoff from_the_end = 40) const {
    for (const auto& entry : fs::recursive_directory_iterator(scratch_ / checkpoint)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-from_the_end, std::ios::end);
      file.put('\x55');
    }
  }
  static std::map<std::string, std::string> files(const std::string& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename() != "manifest.json")
        out[entry.path().filename()] = test::text_of_file(entry.path());
    return out;
  }
  static unsigned mode(const fs::path& path) { return static_cast<unsigned>(fs::status(path).permissions()); }

  const ScratchDirectory scratch_;
};

TEST_F(CkptVerb, ExportEqualsTheExportOfTheRun) {
  make_model();
  fs::permissions(*this / "model/tokenizer.json", fs::perms(0600));
  run_from_model({});
  run({"ckpt", "export", "out", "handed/"});
  EXPECT_TRUE(files(*this / "handed") == files(*this / "out/final"));
  EXPECT_EQ(files(*this / "handed").count("chat_template.jinja"), 1u);
  for (const char* made : {"out/final", "handed", "out/checkpoints/step-000001"})
    for (const auto& entry : fs::recursive_directory_iterator(*this / made)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_EQ(mode(entry.path()) & 077, 0u) << entry.path();
    }
}

// As training, evaluation and merging do.
TEST_F(CkptVerb, ExportRefusesValuesThatAreNotFinite) {
  make_model();
  run({"ckpt", "export", "model", "whole"});
  const std::string file = *this / "model/model.safetensors", bytes = test::text_of_file(file);
  const float nan = std::numeric_limits<float>::quiet_NaN(), large = 1e5f;
  const auto with_last = [&](const float& value) {
    std::string changed = bytes;
    std::memcpy(changed.data() + changed.size() - sizeof value, &value, sizeof value);
    test::write_text(file, changed);
  };
  with_last(nan);
  EXPECT_HAS(run({"ckpt", "export", "model", "bad"}, 7), "' in 'model' has a value that is NaN or infinite\n");
  EXPECT_HAS(run({"ckpt", "export", "model", "bad", "--dtype", "bf16"}, 7), "has a value that is NaN or infinite");
  with_last(large);
  EXPECT_HAS(run({"ckpt", "export", "model", "bad", "--dtype", "fp16"}, 7), "overflows float16");
  EXPECT_FALSE(fs::exists(*this / "bad"));
  run({"ckpt", "export", "model", "large", "--dtype", "bf16"});
  // Damage to our own files is reported as damage.
  std::string damaged = test::text_of_file(*this / "whole/model.safetensors");
  std::memcpy(damaged.data() + damaged.size() - sizeof nan, &nan, sizeof nan);
  test::write_text(*this / "whole/model.safetensors", damaged);
  EXPECT_HAS(run({"ckpt", "export", "whole", "bad"}, 7), "is damaged: its CRC32C is ");
}

TEST_F(CkptVerb, ExportLeavesTheDirectoryOfARunInProgressAlone) {
  run({"train", "model.toml"});
  const int lock = ::open((*this / "model-run/checkpoints/.lock").c_str(), O_RDWR);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_HAS(run({"ckpt", "export", "model-run", "model-run/export-bf16"}, 7), "is in use by another run");
  EXPECT_FALSE(fs::exists(*this / "model-run/export-bf16"));
  run({"ckpt", "export", "model-run", "handed"});
  ::close(lock);
}

TEST_F(CkptVerb, ExportReplacesNothingOfAnotherRunAndNamesWhatItReplaces) {
  run({"train", "model.toml"});
  run({"train", "model.toml", "run.output_dir=other", "run.max_steps=2"});
  const auto before = files(*this / "other/final");
  EXPECT_HAS(run({"ckpt", "export", "model-run", "other/final"}, 7), "it lies in the directory of another run, '");
  EXPECT_HAS(run({"ckpt", "export", "model-run", "model-run/x"}, 7),
             "in it " + scratch_.path() + "/model-run/final or ");
  EXPECT_TRUE(files(*this / "other/final") == before);
  EXPECT_FALSE(fs::exists(*this / "model-run/x"));
  EXPECT_EQ(run({"ckpt", "export", "other", "handed"}).find("replaces"), std::string::npos);
  EXPECT_HAS(run({"ckpt", "export", "model-run", "handed"}), "/handed replaced the old contents: step 2, written 2");
}

TEST_F(CkptVerb, ModelDirectoriesMayConsistOfLinks) {
  make_model();
  for (const bool is_hub : {true, false}) {
    const std::string name = is_hub ? "hub" : "plain";
    const std::string snapshot = *this / (name + "/snapshots/main"), blobs = *this / (name + "/blobs");
    fs::create_directories(snapshot);
    fs::create_directories(blobs);
    int number = 0;
    for (const auto& entry : fs::directory_iterator(*this / "model")) {
      const std::string file = entry.path().filename();
      const std::string blob = is_hub ? std::string(63, 'a') + std::to_string(number++) : file;
      fs::copy(entry.path(), blobs + "/" + blob);
      fs::create_symlink((is_hub ? "../../blobs" : blobs) + "/" + blob, snapshot + "/" + file);
    }
    run_from_model({"model.path=" + snapshot, "run.output_dir=" + name + "-out"});
    EXPECT_EQ(files(*this / (name + "-out/final")).count("tokenizer.json"), 1u);
  }
  EXPECT_TRUE(files(*this / "hub-out/final") == files(*this / "plain-out/final"));
}

TEST_F(CkptVerb, PruneDoesNotCountDamagedCheckpoints) {
  run({"train", "model.toml", "run.max_steps=3", "checkpoint.every_steps=1", "checkpoint.keep_last=0"});
  damage("model-run/checkpoints/step-000003");
  const std::string said = run({"ckpt", "prune", "model-run", "--keep-last", "1"});
  EXPECT_HAS(said, "deleted step-000001\n");
  EXPECT_HAS(said, "step-000003' is damaged and is not counted: ");
  EXPECT_TRUE(fs::exists(*this / "model-run/checkpoints/step-000002/manifest.json"));
  EXPECT_TRUE(fs::exists(*this / "model-run/checkpoints/step-000003/manifest.json"));
}

TEST_F(CkptVerb, PathsThatAreNoRunAreExplained) {
  run({"train", "model.toml", "run.output_dir=runs/one"});
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"runs", "'runs' has no checkpoint\nhint: it holds run directories: give one of them, such as runs/one"},
      {"runs/one/final", "'runs/one/final' is one checkpoint or export, not a folder of checkpoints"},
      {"model.toml", "'model.toml' is a file\nhint: give a run directory"},
      {"nowhere", "there is no directory nowhere"}};
  for (const auto& [path, said] : expected) EXPECT_HAS(run({"ckpt", "ls", path}, 7), said);
  test::write_text(scratch_ / "eval.toml", "extends = [\"model.toml\"]\n[[data.eval]]\npath = \"corpus.txt\"\n");
  EXPECT_HAS(run({"eval", "eval.toml", "--from", "runs/one"}), "from runs/one/checkpoints/step-0000");
  EXPECT_HAS(run({"train", "model.toml", "run.output_dir=two", "run.resume=runs/one", "run.max_steps=3"}),
             "resumed from runs/one/checkpoints/step-0000");
}

TEST_F(CkptVerb, InfoDiffVerifyAndPrunePrintReadableLines) {
  run({"train", "model.toml", "run.max_steps=2", "checkpoint.every_steps=1"});
  const std::string info = run({"ckpt", "info", "model-run"});
  EXPECT_HAS(info, "plugins:\n");
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 400u) << line;
  const std::string checkpoints = "model-run/checkpoints/step-00000";
  const std::string diff = run({"ckpt", "diff", checkpoints + "1", checkpoints + "2"}, 1);
  EXPECT_HAS(diff, "- " + checkpoints + "1: step 1, ");
  EXPECT_HAS(diff, "+ " + checkpoints + "2: step 2, ");
  EXPECT_HAS(diff, "\ntensors that differ: ");
  EXPECT_HAS(run({"ckpt", "prune", "model-run", "--keep-last", "2"}), "nothing to delete\n");
  std::fstream(scratch_ / "model-run/checkpoints/step-000002/config.json", std::ios::in | std::ios::out).put('[');
  EXPECT_HAS(run({"ckpt", "verify", "model-run"}, 7), "config.json: damaged: CRC32C ");
}

// The verb prints lines of 4 KB into a FIFO of 4 KB, so that it blocks until the test reads.
TEST_F(CkptVerb, AStepThatIsDeletedDuringVerifyIsNoDamage) {
  run({"train", "model.toml", "run.max_steps=4", "checkpoint.every_steps=1", "checkpoint.keep_last=0"});
  const std::string fifo = *this / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int reader = open(fifo.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_EQ(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  std::string path = "model-run";
  while (path.size() < 3800) path = "./" + path;
  const std::string program = CHASSIS_TEST_BINARY_DIR "/bin/chassis";
  test::Process verify({"/bin/sh", "-c", "exec \"$0\" ckpt verify \"$1\" > fifo", program, path}, scratch_.path());
  const auto is_full = [&] {
    int num_bytes = 0;
    return ioctl(reader, FIONREAD, &num_bytes) == 0 && num_bytes > 0;
  };
  for (int i = 0; i < 6000 && verify.running() && !is_full(); ++i) usleep(10'000);
  ASSERT_TRUE(is_full()) << verify.output_so_far();
  fs::remove_all(*this / "model-run/checkpoints/step-000004");  // the verb is blocked at the second or third step
  std::string said;
  for (char bytes[4096]; verify.running() || is_full();)
    if (const ssize_t got = read(reader, bytes, sizeof bytes); got > 0) said.append(bytes, static_cast<size_t>(got));
    else usleep(1'000);
  close(reader);
  const Outcome outcome = verify.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(said, "/checkpoints/step-000004: deleted while it was verified\n");
}

TEST_F(CkptVerb, EvalAndGenerateFallBackToAnOlderCheckpoint) {
  run({"train", "model.toml", "run.max_steps=2", "checkpoint.every_steps=1"});
  const std::string first = "model-run/checkpoints/step-000001";
  const std::string before =
      run({"generate", "model.toml", "--from", first, "--prompt", "a", "generate.max_new_tokens=8"});
  for (const auto& entry : fs::recursive_directory_iterator(*this / "model-run/checkpoints/step-000002"))
    if (entry.path().extension() == ".safetensors")
      damage("model-run/checkpoints/step-000002", static_cast<std::streamoff>(entry.file_size()) - 100);
  const std::string said = run({"generate", "model.toml", "--prompt", "a", "generate.max_new_tokens=8"});
  EXPECT_HAS(said, "step-000002' is skipped: ");
  EXPECT_HAS(said, "from " + first);
  EXPECT_EQ(said.substr(said.rfind("\na") + 1), before.substr(before.rfind("\na") + 1));
  test::write_text(scratch_ / "eval.toml", "extends = [\"model.toml\"]\n[[data.eval]]\npath = \"corpus.txt\"\n");
  EXPECT_HAS(run({"eval", "eval.toml"}), "step-000002' is skipped: ");
  EXPECT_TRUE(fs::exists(*this / "model-run/checkpoints/step-000002")) << "only a run renames it";
  EXPECT_HAS(run({"ckpt", "ls", "model-run"}), "resumable, not verified");
}

TEST_F(CkptVerb, PlanHtmlReplacesOnlyPlans) {
  const auto plan = [&](const std::string& html, int exit_code) {
    return run({"plan", "model.toml", "--world", "1", "--html", html}, exit_code);
  };
  plan("plan.html", 0);
  plan("plan.html", 0);
  const std::string before = test::text_of_file(scratch_ / "model.toml");
  EXPECT_HAS(plan("model.toml", 7), "--html model.toml: this file is not a plan");
  EXPECT_EQ(test::text_of_file(scratch_ / "model.toml"), before);
}

}  // namespace
}  // namespace chassis
