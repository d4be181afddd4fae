// Every strategy for two ranks on two simulated CUDA devices: the numbers of one process on the CPU, for each kind of
// model and run of the hybrid matrix, each family, rows of several lengths, and adapters on whole and on 4-bit weights.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>

#include "tests/regress/batch_strategies.hpp"
#include "tests/regress/meshes.hpp"
#include "tests/regress/quant_run.hpp"
#include "tests/regress/simulated_run.hpp"
#include "tests/regress/small_families.hpp"

namespace chassis::test {
namespace {

const Words kDevice = {"run.device=cuda",
                       "attention.plugin=sdpa",
                       "kernels.plugins=[\"aten\"]",
                       "--plugin-path",
                       std::string(CHASSIS_TEST_BINARY_DIR) + "/tests/simulated_kernels",
                       "--plugin-path",
                       std::string(CHASSIS_TEST_BINARY_DIR) + "/tests/simulated_nccl"},
            kDevices = joined(kDevice, kOnNccl);
constexpr unsigned kAccumulates = 1u << 4;

// A strategy on two ranks; `rows` says how the batch is divided into micro-batches, if that matters.
struct OnTwo {
  Strategy strategy;
  Words rows = {};
  bool is_context() const { return strategy.toml[0] == "plugin = \"context\""; }
  friend void PrintTo(const OnTwo& row, std::ostream* out) { *out << row.strategy.name; }
};

std::vector<OnTwo> strategies() {
  std::vector<OnTwo> all;
  for (const Strategy& strategy : kBatchStrategies) all.push_back({strategy});
  for (const Mesh& mesh : meshes())
    if (mesh.ranks == 2) all.push_back({mesh.strategy(), mesh.rows()});
  all.push_back(
      {{"tp, overlap", {"plugin = \"tensor\"", "sequence_parallel = true", "overlap = \"ring\""}, no_mesh, 2}});
  return all;
}

// LibTorch's attention for CUDA takes head dims that are multiples of 8, or in fp32 of 4.
std::string with_heads_of_8(const SmallFamily& family) {
  std::string model = with_even_heads(family);
  const std::string odd = "head_dim = 10";
  if (const size_t at = model.find(odd); at != std::string::npos) model.replace(at, odd.size(), "head_dim = 8");
  return model;
}
std::string with_heads_of_8(const Kind& kind) {
  std::string model = model_of(kind, 3);
  return model.insert(model.find("vocab_size"), "head_dim = 8, ");
}

// One process on the CPU, with which many runs are compared.
struct OnCpu {
  OnCpu(unsigned variant, const std::string& model, const Words& overrides)
      : run(Variant::of_bits(variant), model), result(run(nullptr, 1, overrides)) {}
  ParallelRun run;
  Result result;
};
OnCpu& on_cpu(unsigned variant, const std::string& model, const Words& overrides) {
  static std::map<std::string, std::unique_ptr<OnCpu>> known;
  std::string key = Variant::of_bits(variant).name() + model;
  for (const std::string& word : overrides) key += " " + word;
  std::unique_ptr<OnCpu>& found = known[key];
  if (!found) found = std::make_unique<OnCpu>(variant, model, overrides);
  return *found;
}

class SimulatedStrategies : public testing::TestWithParam<OnTwo> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  }

  static void expect_the_numbers_of_the_cpu(unsigned variant, const std::string& model, const Words& overrides,
                                            const std::string& name) {
    SCOPED_TRACE(name);
    const OnTwo& row = GetParam();
    const Words words = joined(row.rows, overrides);
    OnCpu& cpu = on_cpu(variant, model, words);
    expect_the_numbers(cpu.run(&row.strategy, 2, joined(words, kDevices)), cpu.result, Variant::of_bits(variant).bf16,
                       row.strategy.name + (" | " + name));
  }
};

INSTANTIATE_TEST_SUITE_P(, SimulatedStrategies, testing::ValuesIn(strategies()), [](const auto& info) {
  std::string name = info.param.strategy.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  std::erase(name, ',');
  return name;
});

TEST_P(SimulatedStrategies, GiveTheNumbersOfTheCpuForEachKindOfModelAndRun) {
  for (const Kind& kind : kKinds) expect_the_numbers_of_the_cpu(kind.variant, with_heads_of_8(kind), {}, kind.name);
}

// Gemma 2 is refused; see SimulatedRefusals.
TEST_P(SimulatedStrategies, GiveTheNumbersOfTheCpuForEachFamily) {
  for (const SmallFamily& family : small_families()) {
    if (family.has_experts() || family.name == "gemma2" || (family.name == "phi3" && GetParam().is_context())) continue;
    expect_the_numbers_of_the_cpu(0, with_heads_of_8(family), {}, family.name);
  }
}

TEST_P(SimulatedStrategies, GiveTheNumbersOfTheCpuForRowsOfSeveralLengths) {
  expect_the_numbers_of_the_cpu(kAccumulates, with_heads_of_8(kKinds[0]), {"data.packing=none", "train.seq_len=96"},
                                "several lengths");
}

// Positions that two ranks cannot divide evenly.
TEST_P(SimulatedStrategies, GiveTheNumbersOfTheCpuForAnOddNumberOfPositions) {
  expect_the_numbers_of_the_cpu(0, with_heads_of_8(kKinds[0]), {"train.seq_len=31"}, "31 positions");
}

TEST_P(SimulatedStrategies, TrainAnAdapterOnWholeAndOnFourBitWeights) {
  static QuantRun run(96, kEvenSizes);
  static std::map<std::string, QuantResult> on_cpu;  // by tables
  const OnTwo& row = GetParam();
  std::string parallel = "[[parallel]]\n";
  for (const std::string& line : row.strategy.toml) parallel += line + "\n";
  const Words common = {"checkpoint.contents=full", "train.micro_batch_size=2"};
  const Words words = joined(joined(common, row.strategy.mesh(2)), kDevices);
  const std::string whole = kLora + kFull, nf4 = quant(),
                    fp4 = quant("double_quant = true\nblock_size = 32\ntype = \"fp4\"\n");
  for (const std::string& tables : {whole, nf4, fp4}) {
    SCOPED_TRACE(tables);
    QuantResult& alone = on_cpu[tables];
    if (alone.losses.empty()) alone = run(tables, 1, common);
    const bool is_whole = tables == whole;
    const QuantResult ours =
        run(tables + parallel, 2, is_whole ? words : joined(words, {"quant.plugin=bnb4_simulated"}));
    const double loss = largest_relative(ours.losses, alone.losses);
    std::printf("| %s | %s | %.1e |\n", row.strategy.name, is_whole ? "LoRA" : tables == nf4 ? "nf4" : "fp4", loss);
    EXPECT_LE(loss, kFp32);
    size_t num_components = 0;
    for (const auto& [name, bytes] : alone.tensors) {
      if (is_whole || !is_component(name)) continue;
      EXPECT_TRUE(ours.tensors.at(name) == bytes) << name;
      ++num_components;
    }
    EXPECT_GE(num_components, is_whole ? 0u : 3u * 7 * 3) << "layers × linears × components";
  }
}

// The rows in which tests of the CPU combine variants of model and run.
class SimulatedBatchRows : public testing::TestWithParam<BatchRow> {};
std::vector<BatchRow> rows_of_two_ranks() {
  std::vector<BatchRow> rows = pairwise_rows();
  std::erase_if(rows, [](const BatchRow& row) { return row.ranks != 2; });
  return rows;
}
INSTANTIATE_TEST_SUITE_P(, SimulatedBatchRows, testing::ValuesIn(rows_of_two_ranks()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(SimulatedBatchRows, GiveTheNumbersOfTheCpu) {
  if (!std::filesystem::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  const BatchRow& row = GetParam();
  const Variant variant = Variant::of_bits(row.variant);
  ParallelRun run(variant);
  run.replace("attention_bias = true", "attention_bias = true, head_dim = 8");
  const Result alone = run(nullptr, 1);
  expect_the_numbers(run(&kBatchStrategies[row.strategy], 2, kDevices), alone, variant.bf16, row.name());
}

// Between two strategies, and between the CPU and one or two devices.
TEST(SimulatedCheckpoints, ContinueUnderAnotherStrategyAndElsewhere) {
  if (!std::filesystem::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  ParallelRun run(Variant::of_bits(0), with_heads_of_8(kKinds[0]));
  const Result alone = run(nullptr, 1);
  const Strategy fsdp2 = {"fsdp2", {"plugin = \"fsdp2\""}, no_mesh},
                 tensor = {"tensor", {"plugin = \"tensor\""}, no_mesh, 2};
  run.output_of(&fsdp2, 2, joined({"run.max_steps=1"}, kDevices));
  run.output_of_rest(&tensor, 2, joined({"run.max_steps=2"}, kDevices));
  run.output_of_rest(&fsdp2, 2, {"run.max_steps=3"});
  run.output_of_rest(nullptr, 1, joined({"run.max_steps=4"}, kDevice));
  Result ours = run.goes_on(&fsdp2, 2, kDevices);
  ASSERT_FALSE(ours.evaluations.empty());
  ours.evaluations = {ours.evaluations.back()};  // each part evaluates at its own end
  expect_the_numbers(ours, alone, false, "continued four times");
}

// Experts have no kernels for CUDA.
std::vector<SmallFamily> dense_families() {
  std::vector<SmallFamily> families = small_families();
  std::erase_if(families, [](const SmallFamily& family) { return family.has_experts(); });
  return families;
}

class SimulatedFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(, SimulatedFamilies, testing::ValuesIn(dense_families()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SimulatedFamilies, GiveTheNumbersOfTheCpuOnOneDevice) {
  const SmallFamily& family = GetParam();
  if (family.name == "gemma2") GTEST_SKIP() << "refused; see SimulatedRefusals";
  for (const unsigned variant : {0b000000u, 0b001000u, 0b000001u}) {  // plain, recomputed, in bf16
    const std::string name = Variant::of_bits(variant).name();
    SCOPED_TRACE(name);
    OnCpu& cpu = on_cpu(variant, with_heads_of_8(family), {});
    expect_the_numbers(cpu.run(nullptr, 1, kDevice), cpu.result, Variant::of_bits(variant).bf16,
                       family.name + " | " + name);
  }
}

}  // namespace
}  // namespace chassis::test
