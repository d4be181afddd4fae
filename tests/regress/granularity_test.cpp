// An optimizer declares where its states may be cut, and every strategy respects it. Optimizers with element, block and
// matrix granularity, and with some of each, give the numbers of one process under every strategy, and each
// strategy resumes from the checkpoint of another.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "tests/regress/started_run.hpp"
#include "tests/regress/whole_tensors.hpp"

namespace chassis::test {
namespace {

struct Case {
  const char* optimizer;
  double tolerance;  // for weights and states together; signs and codes may flip if sums round differently
  const char* options = "";
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.optimizer; }
};

const char* const kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n";
const char* const kHsdp = "[mesh]\ndp_replicate = 2\ndp_shard = 2\n[[parallel]]\nplugin = \"fsdp2\"\n";
const char* const kZero1 = "[[parallel]]\nplugin = \"zero\"\nstage = 1\n";
const char* const kZero2 = "[[parallel]]\nplugin = \"zero\"\nstage = 2\n";
const char* const kZero3 = "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n";
const char* const kDdp = "[[parallel]]\nplugin = \"ddp\"\n";

class Granularity : public testing::TestWithParam<Case>, protected StartedRun {
 protected:
  Granularity()
      : StartedRun({"run.threads=1", "train.micro_batch_size=1", "train.global_batch_size=12",
                    "optimizer.max_grad_norm=0", "--plugin-path", CHASSIS_TEST_STUB_DIR}) {}

  std::vector<std::string> words(int steps, const std::string& from = "") const {
    std::vector<std::string> words = {
        std::string("optimizer={plugin=\"") + GetParam().optimizer + "\", lr=2e-3" + GetParam().options + "}",
        "run.max_steps=" + std::to_string(steps)};
    if (!from.empty()) words.push_back("run.resume=" + from);
    return words;
  }
  // Every fp32 tensor of a checkpoint, whole.
  Values values(const std::string& path) {
    Values out;
    for (const auto& [name, tensor] : whole_tensors(path, plugins_))
      if (tensor.dtype() == Dtype::f32) out[name] = floats_of(tensor);
    return out;
  }

  // Trains one step with each sharding, resuming from the checkpoint of the one before, and as many steps alone.
  void train_chain(const std::vector<Sharding>& chain, Values& ours, Values& theirs) {
    const int last = static_cast<int>(chain.size());
    train("alone", words(last));
    std::string from;
    for (int step = 1; step <= last; ++step) {
      const Sharding& sharding = chain[static_cast<size_t>(step - 1)];
      train(sharding.name, words(step, from), sharding);
      from = checkpoint(sharding.name, step);
      ASSERT_FALSE(HasFailure()) << sharding.name << " on " << sharding.ranks;
    }
    ours = values(from), theirs = values(checkpoint("alone", last));
    ASSERT_EQ(ours.size(), theirs.size());
  }

  static nlohmann::json first_step(const std::string& directory) {
    std::istringstream lines(read_file(directory + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (auto record = nlohmann::json::parse(line); record.contains("grad_norm")) return record;
    throw std::runtime_error(directory + " has no step");
  }

  LoadedPlugins plugins_;
};

TEST_P(Granularity, EveryStrategyStepsLikeOneProcessAndResumesFromTheOthers) {
  const std::vector<Sharding> chain = {{"fsdp2", 3, kFsdp2}, {"zero1", 2, kZero1}, {"zero3", 3, kZero3},
                                       {"hsdp", 4, kHsdp},   {"zero2", 3, kZero2}, {"ddp", 2, kDdp}};
  const int last = static_cast<int>(chain.size());
  Values ours, theirs;
  ASSERT_NO_FATAL_FAILURE(train_chain(chain, ours, theirs));
  EXPECT_GT(theirs.size(), 40u);
  EXPECT_LE(relative_l2(ours, theirs), GetParam().tolerance);
  // The difference between two correct runs that sum the same gradients in another order.
  std::vector<std::string> in_one_batch = words(last);
  in_one_batch.emplace_back("train.micro_batch_size=12");
  train("together", in_one_batch);
  const double correct = relative_l2(values(checkpoint("together", last)), theirs);
  EXPECT_LE(relative_l2(ours, theirs), 10 * correct);
  std::printf("%s: %.1e, two correct runs %.1e\n", GetParam().optimizer, relative_l2(ours, theirs), correct);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Granularity,
                         testing::Values(Case{"lion", 1e-3}, Case{"orthogonal", 1e-4}, Case{"blockwise", 1e-3},
                                         Case{"adamw8bit", 1e-3, ", min_8bit_size=512"}, Case{"muon", 1e-3}),
                         [](const auto& info) { return info.param.optimizer; });

// Each matrix that tensor parallelism divides has one owner along its axis.
const char* const kTensor = "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n";
const char* const kTensorFsdp2 =
    "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\nsequence_parallel = true\n[[parallel]]\nplugin = \"fsdp2\"\n";
const char* const kTensorZero1 =
    "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"zero\"\nstage = 1\n";
const char* const kTensorPipeline =
    "[mesh]\ntp = 2\npp = 2\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"pipeline\"\n";
const char* const kTensorDdp = "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"ddp\"\n";

class DividedMatrices : public Granularity {};

TEST_P(DividedMatrices, AreSteppedAsByOneProcess) {
  const std::vector<Sharding> chain = {
      {"tp", 2, kTensor},   {"tp_fsdp2", 4, kTensorFsdp2}, {"tp_pp", 4, kTensorPipeline}, {"tp_zero1", 4, kTensorZero1},
      {"fsdp2", 3, kFsdp2}, {"tp_ddp", 4, kTensorDdp}};
  Values ours, theirs;
  ASSERT_NO_FATAL_FAILURE(train_chain(chain, ours, theirs));
  EXPECT_LE(relative_l2(ours, theirs), GetParam().tolerance);
  std::printf("%s: %.1e\n", GetParam().optimizer, relative_l2(ours, theirs));
}

// In a round each rank receives the parts of one matrix, and sends the stepped ones back.
class TrafficOfMatrices : public Granularity {};

TEST_P(TrafficOfMatrices, IsTwoExchangesForEachRound) {
  train("alone", words(1));
  train("tp", words(1), {"tp", 2, kTensor});
  std::vector<int64_t> matrices;  // their elements
  for (const auto& [name, tensor] : whole_tensors(checkpoint("alone", 1), plugins_))
    if (name.ends_with("proj.weight")) matrices.push_back(tensor.num_elements());
  ASSERT_GT(matrices.size(), 3u);
  std::ranges::sort(matrices, std::greater());
  // The first rank sends its half of the second rank's matrix and of that matrix's gradient, and half of the matrix
  // that it stepped.
  int64_t sent = 0;
  for (size_t i = 0; i < matrices.size(); ++i) sent += i % 2 == 0 ? matrices[i] / 2 : 2 * (matrices[i] / 2);
  const nlohmann::json step = first_step(directory("tp"));
  EXPECT_EQ(step.at("comm/tp/all_to_all_calls").get<size_t>(), 2 * ((matrices.size() + 1) / 2));
  EXPECT_EQ(step.at("comm/tp/all_to_all_bytes").get<int64_t>(), 4 * sent);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TrafficOfMatrices, testing::Values(Case{"muon", 1e-3}),
                         [](const auto& info) { return info.param.optimizer; });

INSTANTIATE_TEST_SUITE_P(Optimizers, DividedMatrices, testing::Values(Case{"orthogonal", 1e-4}, Case{"muon", 1e-3}),
                         [](const auto& info) { return info.param.optimizer; });

// Some options are refused only when a step is taken.
TEST(GranularityCheck, FindsWhatAnOptimizerRefusesInItsFirstStep) {
  const StartedRun run({});
  const auto check = [&](const std::string& momentum) {
    return run_process({CHASSIS_PROGRAM, "check", run.config_path(), "--without-data",
                        "optimizer={plugin=\"orthogonal\", lr=2e-3, momentum=" + momentum + "}", "--plugin-path",
                        CHASSIS_TEST_STUB_DIR, "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                       run.folder().path());
  };
  const Outcome refused = check("1.0");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_NE(refused.output.find("plugin 'orthogonal' 0.1.0: momentum is 1"), std::string::npos) << refused.output;
  const Outcome accepted = check("0.5");
  EXPECT_EQ(accepted.exit_code, 0) << accepted.output;
}

TEST(GranularityPlan, CountsTheMatricesThatEachRankOwns) {
  const StartedRun run({});
  write_text(run.folder() / "planned.toml", std::string("schema_version = 1\nextends = [\"run.toml\"]\n") + kFsdp2);
  const auto plan_of = [&](const std::string& optimizer) {
    const Outcome outcome =
        run_process({CHASSIS_PROGRAM, "plan", run.folder() / "planned.toml", "--world", "3", "--json",
                     "optimizer={plugin=\"" + optimizer + "\", lr=2e-3}", "train.global_batch_size=3", "--plugin-path",
                     CHASSIS_TEST_STUB_DIR, "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                    run.folder().path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
  };
  const auto states = [](const nlohmann::json& plan) {
    int64_t sum = 0, least = INT64_MAX, most = 0;
    for (const auto& rank : plan["ranks"]) {
      const int64_t bytes = rank["step"]["categories"]["optimizer"]["peak"];
      sum += bytes * static_cast<int64_t>(rank["ranks"].size());
      least = std::min(least, bytes), most = std::max(most, bytes);
    }
    return std::tuple(sum, least, most);
  };
  const auto elements = plan_of("lion"), matrices = plan_of("orthogonal");
  const int64_t bytes = 4 * elements["parameters"].get<int64_t>();
  EXPECT_EQ(std::get<0>(states(elements)), bytes);
  const auto [sum, least, most] = states(matrices);
  EXPECT_EQ(sum, bytes) << "every matrix has one owner";
  EXPECT_GT(most, least) << "some ranks own more than others";
  EXPECT_LE(most, bytes / 3 + 4 * 101 * 32) << "at most the mean plus the largest matrix";
  EXPECT_EQ(matrices["ranks"].size(), 3u);
}

}  // namespace
}  // namespace chassis::test
