// Two failures of other trainers with mixtures of experts, scaled down: Llama 4 in 4 bits under FSDP2 with an adapter,
// whose first save crashed, and DeepSeek-V2 under ZeRO 3, whose memory grew beyond any plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/regress/quant_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

const std::string kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n";

TEST(SeedCases, Llama4InFourBitsUnderFsdp2IsSavedKilledResumedAndExported) {
  QuantRun run(96,
               "hidden_size = 64, intermediate_size = 64, intermediate_size_mlp = 96, num_attention_heads = 4, "
               "head_dim = 16, num_local_experts = 4, num_experts_per_tok = 1, interleave_moe_layer_step = 2, "
               "no_rope_layer_interval = 2, attention_chunk_size = 16",
               "llama4", "\"fused\", \"grouped\", \"aten\"");
  const std::string tables =
      "[quant]\nplugin = \"bnb4\"\n[adapter]\nplugin = \"lora\"\nrank = 4\ntarget_parameters = "
      "[\"experts.gate_up_proj\", \"experts.down_proj\"]\n[optimizer]\nplugin = \"adamw8bit\"\nlr = 2e-3\neps = 1e-4\n";
  const std::vector<std::string> each_step = {"checkpoint.every_steps=1"};
  const QuantResult alone = run(tables, 1, each_step);
  ASSERT_EQ(alone.losses.size(), 4u);
  const auto experts = std::ranges::count_if(alone.tensors, [](const auto& tensor) {
    return tensor.first.find("experts") != std::string::npos && tensor.first.find("lora_") != std::string::npos;
  });
  EXPECT_GT(experts, 0) << "no branch of an expert was trained";

  fs::remove_all(run.folder() / "run");
  const std::unique_ptr<Process> four =
      run.start(tables + kFsdp2, 4, {"checkpoint.every_steps=1", "run.max_steps=400"});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!fs::exists(run.folder() / "run/checkpoints/latest") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  four->kill_all();
  int64_t last = 0;
  for (const auto& entry : fs::directory_iterator(run.folder() / "run/checkpoints"))
    if (const std::string name = entry.path().filename(); name.starts_with("step-"))
      last = std::max<int64_t>(last, std::stoll(name.substr(5)));
  ASSERT_GE(last, 1);

  const std::string steps = "run.max_steps=" + std::to_string(std::max<int64_t>(4, last + 1));
  const Outcome resumed = run.train(tables + kFsdp2, 3, {"checkpoint.every_steps=1", steps});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_HAS(resumed.output, "resumed from");
  std::vector<double> losses;
  std::istringstream metrics(text_of_file(run.folder() / "run/metrics.jsonl"));
  for (std::string line; losses.size() < 4 && std::getline(metrics, line);)
    losses.push_back(nlohmann::json::parse(line).at("loss"));
  EXPECT_LE(largest_relative(losses, alone.losses), 2e-6);
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
    EXPECT_TRUE(fs::exists(run.folder() / ("run/final/" + std::string(file)))) << file;
  const Outcome evaluated = run.use(
      "eval", "base",
      "[quant]\nplugin = \"bnb4\"\n[adapter]\nplugin = \"lora\"\npath = \"" + (run.folder() / "run/final") + "\"\n");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.output;
}

TEST(SeedCases, DeepSeekUnderZero3StaysWithinThePlan) {
  QuantRun run(96,
               "hidden_size = 64, intermediate_size = 96, num_attention_heads = 2, n_routed_experts = 8, "
               "num_experts_per_tok = 2, moe_intermediate_size = 32, n_shared_experts = 1, kv_lora_rank = 16, "
               "q_lora_rank = 24, qk_nope_head_dim = 12, qk_rope_head_dim = 8, v_head_dim = 20, "
               "first_k_dense_replace = 1",
               "deepseek_v2", "\"fused\", \"grouped\", \"aten\"");
  const Outcome outcome =
      run.train("[optimizer]\nlr = 1e-3\n[recompute]\nmode = \"full\"\n[[parallel]]\nplugin = \"zero\"\nstage = 3\n", 2,
                {"run.max_steps=60"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  std::smatch found;
  const std::regex numbers(R"(memory peak ([0-9.]+) MiB planned, ([0-9.]+) MiB measured)");
  ASSERT_TRUE(std::regex_search(outcome.output, found, numbers)) << outcome.output;
  EXPECT_NEAR(std::stod(found[2]), std::stod(found[1]) + 1, 0.1) << "1 MiB is gloo's, which no plan counts";
  double early = 0, late = 0;
  int number = 0;
  std::istringstream metrics(text_of_file(run.folder() / "run/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const double peak = nlohmann::json::parse(line).at("peak_memory_bytes");
    (++number <= 3 ? early : late) = peak;
  }
  EXPECT_EQ(number, 60);
  EXPECT_EQ(late, early) << "the peak grows after the third step";
}

}  // namespace
}  // namespace chassis::test
