// A mixture of experts learns the text of the quickstart as well as a dense model that computes as much for a token,
// and uses all of its experts.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

constexpr const char* kText = CHASSIS_TEST_SOURCE_DIR "/.deps/text/jargon.txt";  // tools/bootstrap puts it there
constexpr int kNumSteps = 450, kNumLayers = 3;

class LearningRun {
 public:
  // Trains into the folder `name`. Returns the mean loss of the last 20 steps.
  double train(const std::string& name, const std::string& family, const std::string& mlp,
               const std::string& model = {}) const {
    write_text(
        folder_ / (name + ".toml"),
        "schema_version = 1\n[run]\noutput_dir = \"" + name +
            "\"\nseed = 1\ndevice = \"cpu\"\nmax_steps = " + std::to_string(kNumSteps) +
            "\n[plugins]\npath = [\"" CHASSIS_TEST_PLUGIN_DIR "\"]\n[model]\nplugin = \"" + family +
            "\"\nconfig = { vocab_size = 259, hidden_size = 128, num_hidden_layers = " + std::to_string(kNumLayers) +
            ", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 32, max_position_embeddings = 512, "
            "tie_word_embeddings = true, " +
            mlp + " }\n" + model + "[tokenizer]\nplugin = \"bytes\"\n[[data.train]]\npath = \"" + kText +
            "\"\ndocuments = \"paragraph\"\n[data]\ncache_dir = \"cache\"\n[train]\nseq_len = "
            "128\nmicro_batch_size = 8\nglobal_batch_size = 8\n[optimizer]\nplugin = \"adamw\"\nlr = "
            "1.2e-3\nweight_decay = 0.1\n[schedule]\nname = \"cosine\"\nwarmup_steps = 40\nmin_lr_ratio = "
            "0.1\n[precision]\ncompute = \"fp32\"\n[attention]\nplugin = \"interval\"\n[kernels]\nplugins = "
            "[\"fused\", \"grouped\", \"aten\"]\n[export]\nwhen = \"never\"\n");
    const Outcome outcome = run_process({CHASSIS_PROGRAM, "train", name + ".toml"}, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    std::vector<double> losses;
    std::istringstream metrics(text_of_file(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(metrics, line);)
      losses.push_back(nlohmann::json::parse(line).at("loss").get<double>());
    EXPECT_EQ(losses.size(), static_cast<size_t>(kNumSteps));
    return std::accumulate(losses.end() - 20, losses.end(), 0.0) / 20;
  }

  // Experts without a row among the 1024 tokens of the last step.
  void expect_no_dead_expert(const std::string& name) const {
    nlohmann::json last;
    std::istringstream metrics(text_of_file(folder_ / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(metrics, line);) last = nlohmann::json::parse(line);
    for (int layer = 0; layer < kNumLayers; ++layer) {
      const std::string router = "router/layers." + std::to_string(layer) + "/";
      EXPECT_EQ(last.at(router + "idle_experts"), 0) << router;
      std::printf("layer %d: largest load %.2f of the mean\n", layer, last.at(router + "max_load").get<double>());
    }
  }

 private:
  ScratchDirectory folder_;
};

TEST(ExpertLearning, IsThatOfADenseModelWithoutADeadExpert) {
  if (!std::filesystem::exists(kText)) GTEST_SKIP() << "tools/bootstrap has not put " << kText << " there";
  const LearningRun run;
  const double dense = run.train("dense", "qwen3", "intermediate_size = 256");
  const double experts =
      run.train("experts", "qwen3_moe",
                "num_experts = 8, num_experts_per_tok = 2, moe_intermediate_size = 128, norm_topk_prob = true",
                "router_aux_weight = 0.001\n");  // of Qwen3-MoE's files
  std::printf("dense %.4f, experts %.4f\n", dense, experts);
  EXPECT_LT(dense, 3.5) << "of log(259) = 5.6 at the start";
  EXPECT_LE(experts, 1.01 * dense);
  run.expect_no_dead_expert("experts");
}

}  // namespace
}  // namespace chassis::test
