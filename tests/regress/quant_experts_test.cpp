// Experts in 4 bits: the same bytes and numbers under every strategy, files with a matrix per expert, and what stays.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/regress/quant_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

// Rows of gate and up, and columns of down, are whole blocks of 64 on two ranks.
struct Family {
  const char *name, *sizes;
  int num_experts, num_expert_layers;
  const char* file;  // of an expert's linears
};
constexpr Family kMixtral = {"mixtral",
                             "hidden_size = 128, intermediate_size = 128, num_attention_heads = 4, num_local_experts = "
                             "5, num_experts_per_tok = 2",
                             5, 3, "model.layers.1.block_sparse_moe.experts.3.w2.weight"};
constexpr Family kQwen3 = {"qwen3_moe",
                           "hidden_size = 128, intermediate_size = 256, num_attention_heads = 4, head_dim = 32, "
                           "num_experts = 6, num_experts_per_tok = 2, moe_intermediate_size = 128, norm_topk_prob = "
                           "true, decoder_sparse_step = 2",
                           6, 1, "model.layers.1.mlp.experts.3.down_proj.weight"};

const std::vector<std::string> kFullCheckpoints = {"checkpoint.contents=full", "train.micro_batch_size=2"};
const std::string kTensor = "[[parallel]]\nplugin = \"tensor\"\n", kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n",
                  kZero3 = "[[parallel]]\nplugin = \"zero\"\nstage = 3\n",
                  kPipeline = "[[parallel]]\nplugin = \"pipeline\"\n", kHybrid = kTensor + kFsdp2 + "[mesh]\ntp = 2\n";
const std::string kDoubleQuant = "double_quant = true\nblock_size = 32\n";

class ExpertsRun : public QuantRun {
 public:
  explicit ExpertsRun(const Family& family)
      : QuantRun(96, family.sizes, family.name, "\"fused\", \"grouped\", \"aten\"") {}

  std::string call(std::vector<std::string> words, int exit_code = 0) {
    words.insert(words.begin(), CHASSIS_PROGRAM);
    words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    const Outcome outcome = run_process(words, folder().path());
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  double loss(const std::string& model, const std::string& tables, const std::vector<std::string>& words = {}) {
    const Outcome outcome = use("eval", model, tables, words);
    std::smatch found;
    if (!std::regex_search(outcome.output, found, std::regex("loss ([0-9.]+)"))) {
      ADD_FAILURE() << outcome.output;
      return std::nan("");
    }
    return std::stod(found[1]);
  }
  std::string weights(const std::string& model) const {
    return text_of_file(folder() / (model + "/model.safetensors"));
  }
  nlohmann::json header(const std::string& model) const {
    const std::string bytes = weights(model);
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    return nlohmann::json::parse(bytes.substr(8, size));
  }
};

void expect_equal_components(const QuantResult& ours, const QuantResult& other) {
  for (const auto& [name, bytes] : other.tensors) {
    if (!is_component(name)) continue;
    EXPECT_TRUE(ours.tensors.at(name) == bytes) << name;
  }
}

class QuantExperts : public testing::TestWithParam<Family> {};
INSTANTIATE_TEST_SUITE_P(, QuantExperts, testing::Values(kMixtral, kQwen3),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(QuantExperts, HaveTheBytesAndNumbersOfOneProcess) {
  ExpertsRun run(GetParam());
  for (const std::string& options : {std::string(), kDoubleQuant}) {
    SCOPED_TRACE(options);
    const QuantResult alone = run(quant(options), 1, kFullCheckpoints);
    const std::string down = "model.layers.1.mlp.experts.down_proj.weight";
    const size_t elements = static_cast<size_t>(GetParam().num_experts) * 128 * 128;
    EXPECT_EQ(alone.tensors.at(down).size(), elements / 2);
    EXPECT_EQ(alone.tensors.at(down + ".absmax").size(), options.empty() ? elements / 64 * 4 : elements / 32);
    EXPECT_EQ(alone.tensors.at(down + ".quant_map").size(), static_cast<size_t>(GetParam().num_experts) * 64);
    for (const auto& [name, bytes] : alone.tensors) {
      if (!name.ends_with("mlp.gate.weight")) continue;
      EXPECT_EQ(bytes.size(), static_cast<size_t>(GetParam().num_experts) * 128 * 4) << "a router stays as it is";
    }
    for (const auto& [tables, ranks] :
         {std::pair(kFsdp2, 2), {kZero3, 3}, {kTensor, 2}, {kPipeline, 2}, {kHybrid, 4}}) {
      SCOPED_TRACE(tables);
      const QuantResult ours = run(quant(options) + tables, ranks, kFullCheckpoints);
      EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
      expect_equal_components(ours, alone);
    }
  }
}

TEST_P(QuantExperts, AreWrittenAndReadAsAMatrixPerExpert) {
  ExpertsRun run(GetParam());
  run.call({"ckpt", "quantize", "base", "--out", "nf4", "quant.double_quant=true"});
  const nlohmann::json header = run.header("nf4");
  const std::string file = GetParam().file;
  const auto expect = [&](const std::string& suffix, const char* dtype, const std::vector<int64_t>& shape) {
    ASSERT_TRUE(header.contains(file + suffix)) << suffix;
    EXPECT_EQ(header.at(file + suffix).at("dtype"), dtype) << suffix;
    EXPECT_EQ(header.at(file + suffix).at("shape").get<std::vector<int64_t>>(), shape) << suffix;
  };
  expect("", "U8", {128 * 128 / 2, 1});
  expect(".absmax", "U8", {256});
  expect(".quant_map", "F32", {16});
  expect(".nested_absmax", "F32", {1});
  expect(".nested_quant_map", "F32", {256});
  EXPECT_TRUE(header.contains(file + ".quant_state.bitsandbytes__nf4"));
  const auto config = nlohmann::json::parse(text_of_file(run.folder() / "nf4/config.json"));
  EXPECT_EQ(config.at("quantization_config").at("bnb_4bit_experts"), true);
  EXPECT_EQ(config.at("quantization_config").at("llm_int8_skip_modules"), (nlohmann::json{"gate", "lm_head"}));

  const std::string tables = "[quant]\nplugin = \"bnb4\"\n";
  const double from_files = run.loss("nf4", tables);
  EXPECT_LE(std::abs(run.loss("base", tables + "double_quant = true\n") - from_files), 1e-6);
  EXPECT_GT(std::abs(run.loss("base", "") - from_files), 1e-6) << "4 bits change the loss";
  for (const auto& [parallel, ranks] : {std::pair(kFsdp2, "2"), {kTensor, "2"}, {kHybrid, "4"}})
    EXPECT_LE(std::abs(run.loss("nf4", tables + parallel, {"--nproc", ranks}) - from_files), 1e-6) << parallel;

  run.call({"ckpt", "export", "nf4", "copy"});
  EXPECT_TRUE(run.weights("copy") == run.weights("nf4"));
  EXPECT_EQ(text_of_file(run.folder() / "copy/config.json"), text_of_file(run.folder() / "nf4/config.json"));
}

// A merge decodes the weights of each expert.
TEST_P(QuantExperts, ComputeWhatTheirDecodedWeightsCompute) {
  ExpertsRun run(GetParam());
  run.call({"ckpt", "quantize", "base", "--out", "nf4", "quant.double_quant=true"});
  run("[quant]\nplugin = \"bnb4\"\n" + kLora, 1, {"model.path=nf4", "checkpoint.contents=full"});
  const std::string from = (run.folder() / "run/checkpoints/step-000004");
  const double trained = run.loss("nf4", "[quant]\nplugin = \"bnb4\"\n" + kLora, {"--from", from});
  run.call({"ckpt", "merge", "run", "--out", "merged"});
  const nlohmann::json header = run.header("merged");
  EXPECT_EQ(header.at(GetParam().file).at("shape"), (nlohmann::json{128, 128}));
  EXPECT_LE(std::abs(run.loss("merged", "") - trained), 5e-6);
  run.call({"ckpt", "merge", "run", "--out", "kept", "--keep-quantized"});
  run.call({"ckpt", "quantize", "merged", "--out", "again", "quant.double_quant=true"});
  EXPECT_TRUE(run.weights("kept") == run.weights("again"));
}

TEST(QuantExpertsResume, ContinueOnOtherMeshes) {
  ExpertsRun run(kMixtral);
  std::vector<std::string> half = kFullCheckpoints;
  half.emplace_back("run.max_steps=2");
  const QuantResult whole = run(quant(kDoubleQuant), 1, kFullCheckpoints);
  const std::pair<std::string, int> alone = {"", 1}, fsdp2 = {kFsdp2, 3}, tensor = {kTensor, 2}, hybrid = {kHybrid, 4};
  for (const auto& [from, to] : {std::pair(alone, tensor), {tensor, fsdp2}, {fsdp2, hybrid}, {hybrid, alone}}) {
    SCOPED_TRACE(from.first + " to " + to.first);
    fs::remove_all(run.folder() / "run");
    const Outcome first = run.train(quant(kDoubleQuant) + from.first, from.second, half);
    ASSERT_EQ(first.exit_code, 0) << first.output;
    const Outcome rest = run.train(quant(kDoubleQuant) + to.first, to.second, kFullCheckpoints);
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const QuantResult ours = run.result();
    EXPECT_LE(largest_relative(ours.losses, whole.losses), 2e-6);
    expect_equal_components(ours, whole);
  }
}

// "memory peak 1.53 MiB planned, 1.52 MiB measured (+0.4 %)". gloo receives pieces of sums in 1 MiB for each other
// rank, at most 32 MiB, which no plan counts.
TEST(QuantExpertsMemory, IsPlanned) {
  ExpertsRun run(kMixtral);
  const auto unplanned_mib = [&](const std::string& tables, int ranks) {
    fs::remove_all(run.folder() / "run");
    const Outcome outcome = run.train(tables, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::smatch found;
    const std::regex numbers(R"(memory peak ([0-9.]+) MiB planned, ([0-9.]+) MiB measured)");
    if (!std::regex_search(outcome.output, found, numbers)) ADD_FAILURE() << outcome.output;
    return found.empty() ? std::nan("") : std::stod(found[2]) - std::stod(found[1]);
  };
  EXPECT_NEAR(unplanned_mib(quant(), 1), 0, 0.1);
  for (const std::string& tables : {kFsdp2, kTensor})
    EXPECT_NEAR(unplanned_mib(quant() + tables, 2), unplanned_mib(kLora + kFull + tables, 2), 0.1) << tables;
}

TEST(QuantExpertsOption, LeavesThem) {
  ExpertsRun run(kMixtral);
  const QuantResult left = run(quant("experts = false\n"), 1, kFullCheckpoints);
  EXPECT_EQ(left.tensors.at("model.layers.1.mlp.experts.down_proj.weight").size(), 5u * 128 * 128 * 4);
  EXPECT_EQ(left.tensors.at("model.layers.1.self_attn.q_proj.weight").size(), 128u * 128 / 2);
}

// Files of transformers do not say whether experts are quantized.
TEST(QuantExpertsOption, SaysWhetherFilesHaveThemQuantized) {
  ExpertsRun run(kMixtral);
  const std::string tables = "[quant]\nplugin = \"bnb4\"\n";
  run.call({"ckpt", "quantize", "base", "--out", "attention", "quant.experts=false"});
  const auto config = nlohmann::json::parse(text_of_file(run.folder() / "attention/config.json"));
  EXPECT_FALSE(config.at("quantization_config").contains("bnb_4bit_experts"));
  run.loss("attention", tables);

  run.call({"ckpt", "quantize", "base", "--out", "nf4"});
  EXPECT_HAS(run.use("eval", "nf4", tables + "experts = false\n").output,
             "quant.experts: false, but the model's config.json says true; remove one of the two keys");
  const double loss = run.loss("nf4", tables);
  auto silent = nlohmann::json::parse(text_of_file(run.folder() / "nf4/config.json"));
  silent.at("quantization_config").erase("bnb_4bit_experts");
  write_text(run.folder() / "nf4/config.json", silent.dump());
  fs::remove(run.folder() / "nf4/manifest.json");
  const Outcome refused = run.use("eval", "nf4", tables);
  EXPECT_EQ(refused.exit_code, 7) << refused.output;
  EXPECT_HAS(refused.output, "and the options of [quant] may leave out others");
  EXPECT_EQ(run.loss("nf4", tables + "experts = true\n"), loss);
}

TEST(QuantExpertsOption, CountsThoseThatAreNoWholeBlocks) {
  ExpertsRun run({"mixtral",
                  "hidden_size = 36, intermediate_size = 20, num_attention_heads = 6, num_local_experts = 3, "
                  "num_experts_per_tok = 2",
                  3, 3, ""});
  const Outcome outcome = run.train(quant(), 1);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "experts.0.w1.weight and its like have 720 elements, which are no whole blocks of 64");
}

TEST(QuantExpertsOption, RefusesATensorAxisThatCutsBlocks) {
  ExpertsRun run({"mixtral",
                  "hidden_size = 128, intermediate_size = 96, num_attention_heads = 4, num_local_experts = 3, "
                  "num_experts_per_tok = 2",
                  3, 3, ""});
  const Outcome outcome = run.train(quant() + kTensor, 2);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_HAS(outcome.output, "experts.down_proj.weight' [3, 128, 96] is stored as bnb4/nf4, in blocks of 64 elements");
  EXPECT_HAS(outcome.output, "choose blocks of 16 elements or fewer in [quant]");
  EXPECT_EQ(run.train(quant("block_size = 16\n") + kTensor, 2).exit_code, 2) << "bitsandbytes has no such blocks";
}

}  // namespace
}  // namespace chassis::test
