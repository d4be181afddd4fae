// [checkpoint] and `chassis ckpt`: saves in the background, on demand and of weights only; which checkpoints are kept,
// resumed and exported.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "tests/regress/started_run.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

const Sharding kAlone, kFsdp2{"fsdp2", 2, "[[parallel]]\nplugin = \"fsdp2\"\n"},
    kZero3{"zero3", 2, "[[parallel]]\nplugin = \"zero\"\nstage = 3\n"},
    kDdp{"ddp", 2, "[[parallel]]\nplugin = \"ddp\"\n"};

class Saving : public testing::Test, protected StartedRun {
 protected:
  Saving() : StartedRun({"run.threads=1", "train.micro_batch_size=1", "train.global_batch_size=4"}) {}

  std::vector<std::string> checkpoints(const std::string& name) const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(directory(name) + "/checkpoints"))
      if (const std::string file = entry.path().filename(); file.starts_with("step-")) out.push_back(file);
    std::sort(out.begin(), out.end());
    return out;
  }
  // The files that hold tensors, by their path in the folder.
  static std::map<std::string, std::string> tensor_files(const std::string& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".safetensors")
        out[fs::relative(entry.path(), folder).string()] = text_of_file(entry.path().string());
    return out;
  }
};

class InTheBackground : public Saving, public testing::WithParamInterface<Sharding> {};

// Every step is saved while the next one is computed.
TEST_P(InTheBackground, SavesTheSameAsABlockingSave) {
  const std::vector<std::string> each = {"run.max_steps=6", "checkpoint.every_steps=1", "checkpoint.keep_last=0"};
  train("waits", each, GetParam());
  for (const std::string async : {"true", "staged"}) {
    std::vector<std::string> overrides = each;
    overrides.push_back("checkpoint.async=" + async);
    const std::string log = train(async, overrides, GetParam());
    ASSERT_EQ(checkpoints(async).size(), 6u) << log;
    for (int step = 1; step <= 6; ++step) {
      EXPECT_TRUE(tensor_files(checkpoint(async, step)) == tensor_files(checkpoint("waits", step)))
          << async << " " << step;
      EXPECT_NE(log.find("step-00000" + std::to_string(step) + " saved: "), std::string::npos) << log;
    }
    EXPECT_EQ(fs::read_symlink(directory(async) + "/checkpoints/latest"), "step-000006");
    EXPECT_TRUE(tensor_files(directory(async) + "/final") == tensor_files(directory("waits") + "/final"));
  }
}

INSTANTIATE_TEST_SUITE_P(, InTheBackground, testing::Values(kAlone, kFsdp2, kDdp, kZero3),
                         [](const auto& info) { return info.param.name; });

// A save that has begun is completed although training fails.
TEST_F(Saving, CompletesTheSaveInProgressWhenTrainingFails) {
  const Outcome outcome = start("run", {"run.max_steps=6", "checkpoint.every_steps=1", "checkpoint.async=true",
                                        "optimizer.lr=1e30", "optimizer.max_grad_norm=0"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kNumeric)) << outcome.output;
  const auto saved = checkpoints("run");
  ASSERT_FALSE(saved.empty()) << outcome.output;
  EXPECT_EQ(ckpt({"verify", directory("run")}).exit_code, 0);
}

// The message names the plugin, and saved checkpoints stay whole.
TEST_F(Saving, SurvivesAFormatThatDies) {
  const Outcome outcome =
      start("run", {"run.max_steps=2", "export.plugin=crashing", "--plugin-path", CHASSIS_TEST_STUB_DIR});
#ifdef __SANITIZE_ADDRESS__  // it reports the crash and exits
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
#else
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV) << outcome.output;
  EXPECT_NE(outcome.output.find("in the code of plugin 'crashing'"), std::string::npos) << outcome.output;
#endif
  EXPECT_EQ(checkpoints("run"), std::vector<std::string>{"step-000002"});
  EXPECT_EQ(ckpt({"verify", directory("run")}).exit_code, 0);
  EXPECT_FALSE(fs::exists(directory("run") + "/final"));
}

TEST_F(Saving, IsRequestedByASignalOrAFile) {
  for (const bool by_signal : {true, false}) {
    const std::string name = by_signal ? "signal" : "file";
    Process process(command(name, {"run.max_steps=100000", "checkpoint.every_steps=0"}), folder().path());
    ASSERT_TRUE(process.wait_for("step 3/")) << process.output_so_far();
    if (by_signal)
      process.send(SIGUSR1);
    else
      write_text(directory(name) + "/save", "");
    EXPECT_TRUE(process.wait_for(" saved: ")) << process.output_so_far();
    EXPECT_FALSE(fs::exists(directory(name) + "/save"));
    EXPECT_EQ(checkpoints(name).size(), 1u);
    process.send(SIGTERM);
    EXPECT_EQ(process.wait().exit_code, 75);
    EXPECT_EQ(checkpoints(name).size(), 2u);
    fs::remove(folder() / "output.txt");
  }
}

TEST_F(Saving, OfWeightsOnlyWarnsThatItCannotBeResumed) {
  const std::string log = train("weights", {"run.max_steps=2", "checkpoint.contents=model_only"});
  EXPECT_NE(log.find("checkpoints of this run cannot be resumed"), std::string::npos) << log;
  EXPECT_NE(log.find("weights only, not resumable"), std::string::npos) << log;
  train("full", {"run.max_steps=2"});
  EXPECT_LT(tensor_files(checkpoint("weights", 2)).begin()->second.size() * 2,
            tensor_files(checkpoint("full", 2)).begin()->second.size());

  const Outcome again = start("weights", {"run.max_steps=3"});
  EXPECT_EQ(again.exit_code, static_cast<int>(ExitCode::kStorage)) << again.output;
  EXPECT_NE(again.output.find("holds only weights and cannot be resumed"), std::string::npos) << again.output;

  // It still exports to the same files.
  const Outcome exported =
      ckpt({"export", directory("weights"), directory("handed"), "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_TRUE(tensor_files(directory("handed")) == tensor_files(directory("full") + "/final"));
}

TEST_F(Saving, KeepsTheCheckpointsOfKeepLastAndKeepEvery) {
  train("run", {"run.max_steps=7", "checkpoint.every_steps=1", "checkpoint.keep_last=2", "checkpoint.keep_every=3"});
  EXPECT_EQ(checkpoints("run"), (std::vector<std::string>{"step-000003", "step-000006", "step-000007"}));
  const Outcome pruned = ckpt({"prune", directory("run"), "--keep-last", "1"});
  EXPECT_EQ(pruned.exit_code, 0) << pruned.output;
  EXPECT_NE(pruned.output.find("deleted step-000003\ndeleted step-000006\n"), std::string::npos) << pruned.output;
  EXPECT_EQ(checkpoints("run"), std::vector<std::string>{"step-000007"});
}

// All ranks follow what rank 0 finds.
TEST_F(Saving, ResumesFromAnOlderCheckpointOrStopsOnAllRanks) {
  const std::vector<std::string> each = {"run.max_steps=4", "checkpoint.every_steps=2"};
  train("run", each, kFsdp2);
  fs::remove(checkpoint("run", 4) + "/manifest.json");
  const std::string log = train("run", each, kFsdp2);
  for (const char* part : {"step-000004': it has no manifest.json; next is 'step-000002'", " at step 2",
                           "kept as step-000004.damaged", "step-000004 saved: "})
    EXPECT_NE(log.find(part), std::string::npos) << part << "\n" << log;
  EXPECT_EQ(checkpoints("run"), (std::vector<std::string>{"step-000002", "step-000004", "step-000004.damaged"}));

  fs::rename(checkpoint("run", 4), directory("away"));
  fs::create_directory_symlink(directory("nowhere"), checkpoint("run", 4));
  const Outcome stopped = start("run", each, kFsdp2);
  EXPECT_EQ(stopped.exit_code, static_cast<int>(ExitCode::kStorage)) << stopped.output;
  EXPECT_NE(stopped.output.find("step-000004' cannot be read: "), std::string::npos) << stopped.output;
}

TEST_F(Saving, IsSharedOutByBytesAmongRanksThatHoldTheSame) {
  train("run", {"run.max_steps=1"}, {"ddp4", 4, "[[parallel]]\nplugin = \"ddp\"\n"});
  const auto manifest = nlohmann::json::parse(text_of_file(checkpoint("run", 1) + "/manifest.json"));
  std::map<int, int64_t> bytes;  // by rank
  int64_t sum = 0, largest = 0;
  for (const auto& tensor : manifest.at("tensors")) {
    ASSERT_EQ(tensor.at("dtype"), "f32");
    int64_t num_bytes = 4;
    for (const int64_t size : tensor.at("shape")) num_bytes *= size;
    bytes[tensor.value("rank", 0)] += num_bytes;
    sum += num_bytes;
    largest = std::max(largest, num_bytes);
  }
  ASSERT_EQ(bytes.size(), 4u);
  for (const auto& [rank, of_rank] : bytes) EXPECT_LE(of_rank, sum / 4 + largest) << "rank " << rank;
  const auto loads =
      std::minmax_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  EXPECT_LT(loads.second->second - loads.first->second, sum / 100) << "small tensors balance the ranks";
}

TEST_F(Saving, IsTestedBeforeTheFirstStepOnRequest) {
  const std::string log = train("run", {"run.max_steps=1", "checkpoint.self_test=true"}, kFsdp2);
  EXPECT_NE(log.find(" were saved and read back bit for bit"), std::string::npos) << log;
  EXPECT_LT(log.find("self-test: "), log.find("step 1/1 "));
  EXPECT_FALSE(fs::exists(directory("run") + "/self-test"));
}

TEST_F(Saving, GivesTheSameExportFromACheckpointOfAnyStrategy) {
  const Sharding fsdp2_on_3{kFsdp2.name, 3, kFsdp2.toml};
  for (const Sharding& way : {kAlone, fsdp2_on_3, kZero3}) {
    train(way.name, {"run.max_steps=2", "train.global_batch_size=12"}, way);
    for (const std::string dtype : {"auto", "bf16"}) {
      const Outcome exported = ckpt({"export", directory(way.name), directory("handed"), "--dtype", dtype,
                                     "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
      ASSERT_EQ(exported.exit_code, 0) << exported.output;
      if (dtype == "auto")
        EXPECT_TRUE(tensor_files(directory("handed")) == tensor_files(directory(way.name) + "/final")) << way.name;
      else
        EXPECT_NE(text_of_file(directory("handed") + "/config.json").find("bfloat16"), std::string::npos);
    }
    const Outcome same = ckpt({"diff", checkpoint(way.name, 2), directory(way.name)});
    EXPECT_EQ(same.exit_code, 0) << same.output;
  }
  // After a resume by another strategy without further steps, the shards differ but the contents do not.
  train("recut", {"run.max_steps=2", "train.global_batch_size=12", "run.resume=" + checkpoint("fsdp2", 2)}, kZero3);
  const Outcome same = ckpt({"diff", checkpoint("recut", 2), checkpoint("fsdp2", 2)});
  EXPECT_EQ(same.exit_code, 0) << same.output;
  const Outcome info = ckpt({"info", directory("recut"), "--tensors"});
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_NE(info.output.find("written by 2 ranks"), std::string::npos) << info.output;

  train("longer", {"run.max_steps=3", "train.global_batch_size=12"});
  const Outcome other = ckpt({"diff", checkpoint("longer", 3), checkpoint("fsdp2", 2)});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.output.find("has different contents"), std::string::npos) << other.output;
}

}  // namespace
}  // namespace chassis::test
