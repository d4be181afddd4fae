// The files that a run leaves when memory runs out, on one process and on one of three, and when a rank stops.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "host/service/memory.hpp"
#include "host/train/run.hpp"
#include "tests/regress/small_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

using Words = std::vector<std::string>;
constexpr uint64_t kMiB = 1 << 20;

class PostMortems : public testing::Test {
 protected:
  PostMortems() : run_({"sdpa", "[\"aten\"]"}) { run_.write(random_documents({90, 40, 33, 77, 21, 64})); }
  ~PostMortems() override {
    set_memory_limit(0);
    drop_memory_cache();
  }

  std::string folder() const { return run_.folder() / "run/post-mortem"; }
  std::string file(int rank) const { return folder() + "/rank-" + std::to_string(rank) + ".json"; }
  nlohmann::json report(int rank) const {
    EXPECT_TRUE(std::filesystem::exists(file(rank))) << rank;
    return nlohmann::json::parse(text_of_file(file(rank)));
  }

  Outcome start_with_a_fault(const std::string& fault, int rank, Words more = {}) const {
    write_text(run_.folder() / "faulty.toml",
               "schema_version = 1\nextends = [\"run.toml\"]\n[export]\nwhen = \"never\"\n[[parallel]]\nplugin = "
               "\"faulty\"\n");
    Words command = {CHASSIS_PROGRAM,
                     "train",
                     run_.folder() / "faulty.toml",
                     "parallel.0.fault=" + fault,
                     "parallel.0.rank=" + std::to_string(rank),
                     "run.threads=1",
                     "train.global_batch_size=3"};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(),
                   {"--nproc", "3", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR, "--plugin-path", CHASSIS_TEST_STUB_DIR});
    return run_process(command, run_.folder().path());
  }

  // In this process, so that the test knows what the allocator counted.
  std::string failure_of(const Words& overrides) const {
    Words all = {"export.when=\"never\"", "log.sinks=[]"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    try {
      run_training(load_config(run_.config_path(), all), {CHASSIS_TEST_PLUGIN_DIR});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kOutOfMemory);
      return error.what();
    }
    return "";
  }

  SmallRun run_;
};

void expect_near(uint64_t reported, uint64_t counted) {
  EXPECT_LE(std::abs(static_cast<double>(reported) - static_cast<double>(counted)), 0.05 * static_cast<double>(counted))
      << reported << " and " << counted;
}

TEST_F(PostMortems, NameTheCategoryThatGrewOnOneProcess) {
  install_memory_allocator();
  const Words wide = {"model.config.hidden_size=128", "train.micro_batch_size=4", "run.max_steps=2"};
  ASSERT_EQ(failure_of(wide), "");
  const uint64_t peak = memory_usage().peak_bytes;
  // `held` is in no plan, so the run lacks memory in its first forward.
  std::filesystem::remove_all(run_.folder() / "run");
  const MemoryTag tag(MemoryCategory::kGathered);
  const Tensor held = Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(48 * kMiB)}, Dtype::u8);
  set_memory_limit(48 * kMiB + peak * 3 / 4);
  const std::string error = failure_of(wide);
  EXPECT_HAS(error, "(post-mortem: " + file(0) + ")");
  EXPECT_HAS(error, "above the plan: gathered +48 MiB (48 MiB of 0 B planned)");
  EXPECT_HAS(error, "try recompute.mode = \"full\", which saves about ");
  EXPECT_HAS(error, "try train.micro_batch_size = 2, which saves about ");
  EXPECT_LE(std::count(error.begin(), error.end(), '\n'), 15) << error;

  const nlohmann::json found = report(0);
  EXPECT_EQ(found["schema"], "chassis.post_mortem/1");
  EXPECT_EQ(found["kind"], "out_of_memory");
  EXPECT_EQ(found["plan"]["grew_most"], "gathered");
  const MemoryFailure failure = last_memory_failure().value();
  expect_near(found["request"]["bytes"], failure.requested_bytes);
  EXPECT_EQ(found["memory"]["limit_bytes"], 48 * kMiB + peak * 3 / 4);
  uint64_t sum = 0;
  for (const auto& [name, category] : found["memory"]["categories"].items())
    sum += category["live_bytes"].get<uint64_t>();
  expect_near(sum, failure.usage.live_bytes);
  EXPECT_GT(sum + failure.requested_bytes, 48 * kMiB + peak * 3 / 4) << "that is why it failed";
  expect_near(found["memory"]["categories"]["gathered"]["live_bytes"], 48 * kMiB);
  EXPECT_FALSE(found["where"]["phase"].get<std::string>().empty());
  EXPECT_GE(found["where"]["step"], 1);
  EXPECT_TRUE(found["where"].contains("unit")) << found["where"];
  ASSERT_GE(found["tensors"].size(), 5u);
  for (const auto& tensor : found["tensors"]) EXPECT_GT(tensor["bytes"], 0);
  EXPECT_GE(found["advice"].size(), 2u);
  EXPECT_GE(found["advice"][0]["saves_bytes"], found["advice"][1]["saves_bytes"]);
}

// One rank of three takes all that its address space allows.
TEST_F(PostMortems, NameThePluginThatGrewOnOneRankOfThree) {
  const Outcome outcome = start_with_a_fault("grow", 1);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kOutOfMemory)) << outcome.output;
  EXPECT_HAS(outcome.output, "stopped: rank 1: ");
  EXPECT_HAS(outcome.output, "(post-mortem: " + file(1) + ")");
  EXPECT_HAS(outcome.output, "above the plan: activations and workspace +");
  EXPECT_HAS(outcome.output, " by plugin faulty), peak ");
  EXPECT_FALSE(std::filesystem::exists(file(0)));
  EXPECT_FALSE(std::filesystem::exists(file(2)));
  const nlohmann::json found = report(1);
  EXPECT_EQ(found["rank"], 1);
  EXPECT_EQ(found["request"]["category"], "workspace");
  EXPECT_EQ(found["request"]["plugin"], "faulty");
  EXPECT_EQ(found["request"]["bytes"], 8 * kMiB);
  EXPECT_EQ(found["where"]["step"], 3);
  EXPECT_EQ(found["where"]["phase"], "forward");
  EXPECT_EQ(found["where"]["unit"], "layers.0");
  const uint64_t live = found["memory"]["categories"]["workspace"]["live_bytes"];
  EXPECT_GE(live, 32 * kMiB);
  expect_near(found["memory"]["plugins"]["faulty"]["live_bytes"], live);
  EXPECT_GE(found["plan"]["categories"][0]["difference_bytes"], 32 * kMiB);
  EXPECT_EQ(found["plan"]["grew_most"], found["plan"]["categories"][0]["category"]);
  uint64_t sum = 0;
  for (const auto& [name, category] : found["memory"]["categories"].items())
    sum += category["live_bytes"].get<uint64_t>();
  expect_near(sum, found["memory"]["live_bytes"]);
}

TEST_F(PostMortems, NameTheRankThatGaveNoSign) {
  const Outcome outcome = start_with_a_fault("stop in forward", 1, {"comm.timeout_s=3"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kCommunication)) << outcome.output;
  EXPECT_HAS(outcome.output, "post-mortem: " + file(0));
  for (const int rank : {0, 2}) {
    const nlohmann::json found = report(rank);
    EXPECT_EQ(found["kind"], "communication");
    EXPECT_EQ(found["rank"], rank);
    EXPECT_EQ(found["collective"]["silent_ranks"], nlohmann::json::array({1})) << found["collective"];
    EXPECT_HAS(found["collective"]["call"].get<std::string>(), " of dp_shard)");
    EXPECT_EQ(found["where"]["step"], 3);
    EXPECT_EQ(found["where"]["phase"], "reduction of gradients");
    EXPECT_GT(found["memory"]["live_bytes"], 0);
  }
}

TEST_F(PostMortems, CannotFailTheRunASecondTime) {
  std::filesystem::create_directory(run_.folder() / "run");
  write_text(folder(), "in the way");
  const Outcome outcome = start_with_a_fault("grow", 0);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kOutOfMemory)) << outcome.output;
  EXPECT_HAS(outcome.output, "no post-mortem: ");
  EXPECT_HAS(outcome.output, "is in the way: it is not a directory");
  EXPECT_HAS(outcome.output, "out of memory on the CPU: 8 MiB requested for workspace of plugin faulty");
}

}  // namespace
}  // namespace chassis::test
