// Runs with a base in 4 bits and LoRA: the same bytes and numbers under every strategy, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "tests/regress/quant_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

TEST(Quant, TrainsLoraOnABaseInFourBits) {
  QuantRun run;
  const QuantResult plain = run(kLora + kFull), nf4 = run(quant(), 1, {"checkpoint.contents=full"});
  ASSERT_EQ(nf4.losses.size(), 4u);
  EXPECT_GT(largest_relative(nf4.losses, plain.losses), 1e-5) << "4 bits change the loss";
  EXPECT_LT(largest_relative(nf4.losses, plain.losses), 0.1);
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  EXPECT_EQ(nf4.tensors.at(q).size(), 36u * 36 / 2);
  EXPECT_EQ(nf4.tensors.at(q + ".absmax").size(), 4u * ((36 * 36 + 63) / 64));
  EXPECT_EQ(nf4.tensors.at(q + ".quant_map").size(), 64u);
  EXPECT_EQ(nf4.tensors.at("model.embed_tokens.weight").size(), 96u * 36 * 4) << "stays as it is";
  EXPECT_EQ(nf4.tensors.at("lm_head.weight").size(), 96u * 36 * 4) << "stays as it is";
}

struct Row {
  const char* name;
  const char* toml;
};
constexpr Row kRows[] = {{"ddp", "plugin = \"ddp\"\n"},
                         {"fsdp2", "plugin = \"fsdp2\"\nforward_prefetch = 1\n"},
                         {"zero1", "plugin = \"zero\"\nstage = 1\n"},
                         {"zero2", "plugin = \"zero\"\nstage = 2\n"},
                         {"zero3", "plugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 40\n"}};

// Returns how many components there are.
size_t expect_equal_components(const QuantResult& ours, const QuantResult& other) {
  size_t num_components = 0;
  for (const auto& [name, bytes] : other.tensors) {
    if (!is_component(name)) continue;
    EXPECT_TRUE(ours.tensors.at(name) == bytes) << name;
    ++num_components;
  }
  return num_components;
}

class QuantParallel : public testing::TestWithParam<std::tuple<Row, int>> {};
std::string name_of(const testing::TestParamInfo<std::tuple<Row, int>>& info) {
  return std::get<0>(info.param).name + ("_on_" + std::to_string(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Some, QuantParallel, testing::Combine(testing::ValuesIn(kRows), testing::Values(2, 3)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Matrix, QuantParallel, testing::Combine(testing::ValuesIn(kRows), testing::Values(4)),
                         name_of);

TEST_P(QuantParallel, HasTheBytesAndNumbersOfOneProcess) {
  const auto& [row, ranks] = GetParam();
  static QuantRun run;
  static std::map<std::string, QuantResult> of_one_process;  // by options
  for (const char* options : {"", "double_quant = true\nblock_size = 32\ntype = \"fp4\"\n"}) {
    SCOPED_TRACE(options);
    QuantResult& alone = of_one_process[options];
    if (alone.losses.empty()) alone = run(quant(options), 1, {"checkpoint.contents=full"});
    const QuantResult ours = run(quant(options) + "[[parallel]]\n" + row.toml, ranks, {"checkpoint.contents=full"});
    EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
    EXPECT_EQ(expect_equal_components(ours, alone), 3u * 7 * (*options ? 6 : 3));
  }
}

// Layers are gathered as codes and scales, twice in each of 6 micro-batches: 4.5 bits for an element instead of 32.
TEST(Quant, GathersNoMoreThanWhatIsStored) {
  QuantRun run(96, kEvenSizes);
  const auto gathered = [&](const std::string& tables) {
    std::filesystem::remove_all(run.folder() / "run");
    const Outcome outcome = run.train(tables + "[[parallel]]\nplugin = \"fsdp2\"\n", 2);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::istringstream metrics(text_of_file(run.folder() / "run/metrics.jsonl"));
    std::string line;
    std::getline(metrics, line);
    return nlohmann::json::parse(line).at("comm/dp_shard/all_gather_bytes").get<int64_t>();
  };
  const int64_t linears = 2 * 128 * 128 + 2 * 64 * 128 + 3 * 128 * 256, sent = 3 * 2 * 6 * linears / 2;
  EXPECT_EQ(gathered(kLora + kFull) - gathered(quant()), sent * 4 - (sent / 2 + sent / 64 * 4));
}

// ---- divided by an axis that divides the computation: rows of q, k, v, gate and up, columns of o and down. Such
// stacks communicate in every layer of every micro-batch, so these are larger.

const std::vector<std::string> kFullOfLarge = {"checkpoint.contents=full", "train.micro_batch_size=2"};
const std::string kTensor = "[[parallel]]\nplugin = \"tensor\"\n", kSequence = kTensor + "sequence_parallel = true\n",
                  kHybrid = kTensor + "[[parallel]]\nplugin = \"fsdp2\"\n[mesh]\ntp = 2\n";
const std::string kContext =
    "[[parallel]]\nplugin = \"context\"\nmode = \"gather\"\n[[parallel]]\nplugin = \"fsdp2\"\n[mesh]\ncp = 2\n";
const std::string kPipeline = "[[parallel]]\nplugin = \"pipeline\"\n",
                  kStages = kPipeline + "schedule = \"zb_h1\"\n[[parallel]]\nplugin = \"fsdp2\"\n[mesh]\npp = 2\n";
const char* const kDoubleQuant = "double_quant = true\nblock_size = 32\n";

TEST(QuantTensorParallel, HasTheBytesAndNumbersOfOneProcess) {
  QuantRun run(96, kEvenSizes);
  for (const char* options : {"", kDoubleQuant}) {
    SCOPED_TRACE(options);
    const QuantResult alone = run(quant(options), 1, kFullOfLarge);
    for (const auto& [tables, ranks] : {std::pair(kTensor, 2),
                                        {kSequence, 2},
                                        {kSequence + "overlap = \"ring\"\n", 2},
                                        {kHybrid, 4},
                                        {kContext, 4},
                                        {kPipeline, 2},
                                        {kStages, 4}}) {
      SCOPED_TRACE(tables);
      const QuantResult ours = run(quant(options) + tables, ranks, kFullOfLarge);
      EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
      EXPECT_GE(expect_equal_components(ours, alone), 3u * 7 * 3);
    }
  }
}

// Columns that are cut are saved with the dims of their weight, and read by every other mesh.
TEST(QuantTensorParallel, ContinuesOnEveryMesh) {
  QuantRun run(96, kEvenSizes);
  std::vector<std::string> half = kFullOfLarge;
  half.emplace_back("run.max_steps=2");
  const QuantResult whole = run(quant(kDoubleQuant), 1, kFullOfLarge);
  const std::pair<std::string, int> alone = {"", 1}, fsdp2 = {"[[parallel]]\nplugin = \"fsdp2\"\n", 3},
                                    tensor = {kTensor, 2}, hybrid = {kHybrid, 4}, stages = {kStages, 4};
  for (const auto& [from, to] : {std::pair(alone, tensor),
                                 {tensor, alone},
                                 {tensor, fsdp2},
                                 {hybrid, tensor},
                                 {fsdp2, hybrid},
                                 {stages, tensor},
                                 {hybrid, stages}}) {
    SCOPED_TRACE(from.first + " to " + to.first);
    std::filesystem::remove_all(run.folder() / "run");
    const Outcome first = run.train(quant(kDoubleQuant) + from.first, from.second, half);
    ASSERT_EQ(first.exit_code, 0) << first.output;
    const Outcome rest = run.train(quant(kDoubleQuant) + to.first, to.second, kFullOfLarge);
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const QuantResult ours = run.result();
    EXPECT_LE(largest_relative(ours.losses, whole.losses), 2e-6);
    EXPECT_GE(expect_equal_components(ours, whole), 3u * 7 * 3);
  }
}

TEST(QuantTensorParallel, ReadsAModelThatIsQuantized) {
  QuantRun run(96, kEvenSizes);
  const Outcome made = run_process({CHASSIS_PROGRAM, "ckpt", "quantize", "base", "--out", "nf4", "--plugin-path",
                                    CHASSIS_TEST_PLUGIN_DIR, "quant.double_quant=true"},
                                   run.folder().path());
  ASSERT_EQ(made.exit_code, 0) << made.output;
  std::vector<std::string> overrides = kFullOfLarge;
  overrides.emplace_back("model.path=nf4");
  const QuantResult alone = run(quant(), 1, overrides);
  EXPECT_GT(alone.loaded_bytes, 3 * 147456 / 2) << "codes of three layers";
  EXPECT_LT(alone.loaded_bytes, std::filesystem::file_size(run.folder() / "nf4/model.safetensors"));
  for (const auto& [tables, ranks] : {std::pair(kTensor, 2), {kHybrid, 4}, {kStages, 4}}) {
    const QuantResult ours = run(quant() + tables, ranks, overrides);
    EXPECT_EQ(ours.loaded_bytes, alone.loaded_bytes) << "ranks read every byte once";
    EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
    EXPECT_GE(expect_equal_components(ours, alone), 3u * 7 * 3);
  }
}

// Four ranks save after one step and are killed; fewer ranks go on, and export the adapter.
TEST(Quant, AKilledRunContinuesOnFewerRanks) {
  const std::string tables =
      "[quant]\nplugin = \"bnb4\"\ndouble_quant = true\n[adapter]\nplugin = \"lora\"\nrank = 8\n"
      "[optimizer]\nplugin = \"adamw8bit\"\nmin_8bit_size = 256\nlr = 2e-3\neps = 1e-4\n"
      "[[parallel]]\nplugin = \"fsdp2\"\n";
  QuantRun run;
  const auto losses = [&] {
    std::vector<double> values;
    std::istringstream metrics(text_of_file(run.folder() / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) values.push_back(nlohmann::json::parse(line).at("loss"));
    return values;
  };
  const std::filesystem::path folder = run.folder().path(), directory = folder / "run", killed = folder / "killed";
  ASSERT_EQ(run.train(tables, 4, {"run.max_steps=6"}).exit_code, 0);
  const std::vector<double> whole = losses();
  ASSERT_EQ(whole.size(), 6u);
  std::filesystem::remove_all(directory);
  {
    const auto process =
        run.start(tables, 4, {"run.max_steps=500", "checkpoint.every_steps=1", "checkpoint.keep_last=0"});
    ASSERT_TRUE(process->wait_for("step-000001 saved")) << process->output_so_far();
    ASSERT_TRUE(process->running());
    process->kill_all();
    EXPECT_EQ(process->wait().exit_code, 128 + SIGKILL);
  }
  ASSERT_FALSE(std::filesystem::exists(directory / "final"));
  std::filesystem::rename(directory, killed);
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    std::filesystem::remove_all(directory);
    const Outcome rest =
        run.train(tables, ranks, {"run.max_steps=6", "run.resume=" + (killed / "checkpoints/step-000001").string()});
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const std::vector<double> ours = losses();
    ASSERT_EQ(ours.size(), 5u);
    EXPECT_LE(largest_relative(ours, {whole.begin() + 1, whole.end()}), 2e-6);
    EXPECT_TRUE(std::filesystem::exists(directory / "final/adapter_model.safetensors")) << rest.output;
    EXPECT_TRUE(std::filesystem::exists(directory / "final/adapter_config.json")) << rest.output;
  }
  std::filesystem::remove_all(directory);
  const Outcome refused = run.train(tables, 2,
                                    {"run.max_steps=6", "run.resume=" + (killed / "checkpoints/step-000001").string(),
                                     "optimizer.min_8bit_size=20000"});
  EXPECT_EQ(refused.exit_code, 7);
  EXPECT_HAS(refused.output,
             "states of the optimizer depend on its options: optimizer.min_8bit_size was 256, is 20000");
}

TEST(Quant, ContinuesFromComponentsAndFromItsBase) {
  QuantRun run;
  for (const char* contents : {"full", "trained"}) {
    SCOPED_TRACE(contents);
    const std::string setting = std::string("checkpoint.contents=") + contents;
    const QuantResult whole = run(quant("double_quant = true\n"), 1, {setting});
    std::filesystem::remove_all(run.folder() / "run");
    ASSERT_EQ(run.train(quant("double_quant = true\n"), 1, {setting, "run.max_steps=2"}).exit_code, 0);
    const Outcome rest = run.train(quant("double_quant = true\n") + "[[parallel]]\nplugin = \"fsdp2\"\n", 2, {setting});
    ASSERT_EQ(rest.exit_code, 0) << rest.output;
    const QuantResult ours = run.result();
    EXPECT_LE(largest_relative(ours.losses, whole.losses), 2e-6);
    expect_equal_components(ours, whole);
  }
}

TEST(Quant, IsRefusedWhereItWouldBeTrained) {
  QuantRun run;
  const auto refusal = [&](const std::string& tables) {
    const Outcome outcome = run.train(tables, 1);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    return outcome.output;
  };
  EXPECT_HAS(refusal("[quant]\nplugin = \"bnb4\"\n[optimizer]\nlr = 1e-3\n"),
             "[quant] needs an [adapter]: quantized parameters cannot be trained");
  EXPECT_HAS(refusal(quant() + "[freeze]\ntrain_only = [\"lora_\", \"layers\\\\.1\\\\.mlp\\\\.up_proj\\\\.weight\"]\n"),
             "freeze.train_only matches 'model.layers.1.mlp.up_proj.weight', which [quant] stores as bnb4/nf4: "
             "quantized parameters cannot be trained");
  EXPECT_HAS(refusal(quant("block_size = 48\n")), "quant.block_size: 48 is not a power of 2");
  EXPECT_HAS(refusal(quant("skip = [\"down\"]\n")), "quant.skip: 'down' matches no linear of the model; it has ");
  EXPECT_HAS(refusal(quant("skip = [\"model\"]\n")), "[quant]: no linear is left to quantize");
}

}  // namespace
}  // namespace chassis::test
