// Tensor parallelism, alone and with strategies that divide the batch: the numbers of one process, counted sums, and
// what is refused.
#include <gtest/gtest.h>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::vector<std::string> two_way(int) { return {"mesh.tp=2"}; }

Strategy with_tensor(const char* name, const std::vector<std::string>& other) {
  return beside(name, {"plugin = \"tensor\""}, other, two_way, 2);
}

const Strategy kTensor = {"tp", {"plugin = \"tensor\""}, no_mesh, 2};

const Strategy kSequence = {"tp_sequence", {"plugin = \"tensor\"", "sequence_parallel = true"}, no_mesh, 2};

// Every two variants are on together in some row and off together in another; dims that two ranks cannot divide are
// refused.
std::vector<StrategyRow> rows() {
  const Strategy fsdp2 = with_tensor("tp_fsdp2", {"plugin = \"fsdp2\""}),
                 ddp = with_tensor("tp_ddp", {"plugin = \"ddp\""}),
                 zero1 = with_tensor("tp_zero1", {"plugin = \"zero\"", "stage = 1"}),
                 sequence = {"tp_sequence_fsdp2",
                             {"plugin = \"tensor\"", "sequence_parallel = true", "[[parallel]]", "plugin = \"fsdp2\""},
                             two_way,
                             2},
                 zero3 = with_tensor("tp_zero3", {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40"});
  return {{kTensor, 2, 0b000000},   {kTensor, 2, 0b111000}, {kTensor, 2, 0b010100},   {kTensor, 2, 0b100001},
          {fsdp2, 4, 0b100000},     {fsdp2, 4, 0b011100},   {zero3, 4, 0b010000},     {zero3, 4, 0b101100},
          {zero1, 4, 0b110001},     {ddp, 4, 0b001101},     {kSequence, 2, 0b000000}, {kSequence, 2, 0b111000},
          {kSequence, 2, 0b100101}, {sequence, 4, 0b011100}};
}

class TensorParallel : public testing::TestWithParam<StrategyRow> {};
TEST_P(TensorParallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(, TensorParallel, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });

class TensorParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(Distinct, TensorParallelFamilies, testing::ValuesIn(distinct_families()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, TensorParallelFamilies, testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(TensorParallelFamilies, GiveTheNumbersOfOneProcess) {
  ParallelRun run(Variant::of_bits(0), with_even_heads(GetParam()));
  const Result alone = run(nullptr, 1);
  for (const Strategy* strategy : {&kTensor, &kSequence})
    expect_the_numbers(run(strategy, 2), alone, false, std::string(strategy->name) + " of " + GetParam().name);
}

// 97 tokens are 13 on seven ranks and 6 on the last. ColossalAI #6108: such a vocabulary was saved with its padding.
TEST(TensorParallelVocabulary, OfEightUnequalPartsIsSavedWhole) {
  const std::string model =
      "plugin = \"qwen3\"\nconfig = { vocab_size = 97, hidden_size = 32, intermediate_size = 64, num_hidden_layers = "
      "2, num_attention_heads = 8, num_key_value_heads = 8, head_dim = 8, initializer_range = 0.1, "
      "tie_word_embeddings = true }\n";
  ParallelRun run(Variant::of_bits(0), model);
  const Result alone = run(nullptr, 1);
  const Strategy eight = {"tp8", {"plugin = \"tensor\""}, no_mesh, 8};
  const Result ours = run(&eight, 8);
  expect_the_numbers(ours, alone, false, "tp = 8");
  EXPECT_EQ(ours.weights.at("model.embed_tokens.weight").size(), 97u * 32u);
}

// Two key-value heads on four ranks, with biases (qwen2) and norms (qwen3) of the heads; and one that all ranks share.
TEST(TensorParallelHeads, AreSharedByRanksWhereThereAreFewer) {
  const auto model = [](const std::string& plugin, int heads) {
    return "plugin = \"" + plugin + "\"\nconfig = { vocab_size = 96, hidden_size = 32, intermediate_size = 64, " +
           "num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = " + std::to_string(heads) +
           ", head_dim = 8, initializer_range = 0.1 }\n";
  };
  const Strategy four = {"tp4", {"plugin = \"tensor\""}, no_mesh, 4},
                 fsdp2 = with_tensor("tp_fsdp2", {"plugin = \"fsdp2\""});
  for (const char* plugin : {"qwen2", "qwen3"}) {
    SCOPED_TRACE(plugin);
    ParallelRun two_heads(Variant::of_bits(0), model(plugin, 2));
    expect_the_numbers(two_heads(&four, 4), two_heads(nullptr, 1), false, std::string("tp = 4, two heads, ") + plugin);
    ParallelRun one_head(Variant::of_bits(0), model(plugin, 1));
    const Result alone = one_head(nullptr, 1);
    expect_the_numbers(one_head(&kSequence, 2), alone, false, std::string("sequence, one head, ") + plugin);
    for (const char* mode : {"recompute.mode=none", "recompute.mode=selective"})
      expect_the_numbers(one_head(&fsdp2, 4, {mode}), alone, false,
                         std::string("tp = 2, fsdp2, one head, ") + mode + ", " + plugin);
  }
}

// Positions that two ranks cannot divide evenly, in training, evaluation and a batch of fewer positions.
TEST(SequenceParallel, PadsAnOddNumberOfPositions) {
  for (const SmallFamily& family : small_families()) {
    if (family.name != "qwen3" && family.name != "gemma2") continue;
    SCOPED_TRACE(family.name);
    ParallelRun run(Variant::of_bits(0), family.model);
    const std::vector<std::string> odd = {"train.seq_len=31"};
    const Result alone = run(nullptr, 1, odd);
    expect_the_numbers(run(&kSequence, 2, odd), alone, false, "odd positions of " + family.name);
  }
}

constexpr int kStepSums = 6 * 8;  // loss, gradient norm and requests, once a step

// Shoeybi et al. 2019: two sums in the forward and two in the backward of a layer.
TEST(TensorParallelTraffic, IsTwoSumsPerLayerAndDirection) {
  ParallelRun run(Variant::of_bits(0));
  run(&kTensor, 2);
  const auto record = run.first_record();
  // A micro-batch of 12 × 32 tokens × 48 values of 4 bytes, of which 2 (N - 1) / N are sent: four times in each of 3
  // layers, for the embedding, and for the gradient of the head's input. The loss needs two numbers of each token, of
  // which one is gathered; one more call has the gradients of the layers' biases of o.
  const int tokens = 12 * 32;
  EXPECT_EQ(record.at("comm/tp/all_reduce_calls"), 4 * 3 + 2 + 1 + 1);
  EXPECT_EQ(record.at("comm/tp/all_reduce_bytes"), 14 * tokens * 48 * 4 + tokens * 4 + 3 * 48 * 4);
  EXPECT_EQ(record.at("comm/tp/all_gather_calls"), 1 + 1);
  EXPECT_EQ(record.at("comm/tp/all_gather_bytes"), tokens * 4 + kStepSums);
}

// Korthikanti et al. 2022: the sums become scatters, and their results are gathered before they are used.
TEST(SequenceParallelTraffic, IsTwoGathersAndTwoScattersPerLayerAndDirection) {
  ParallelRun run(Variant::of_bits(0));
  run(&kSequence, 2);
  const auto record = run.first_record();
  const int tokens = 12 * 32;
  // Also the embedding's scatter, whose gradient is gathered, and the head's gather, whose gradient is scattered; and
  // one number of each token for the loss.
  EXPECT_EQ(record.at("comm/tp/reduce_scatter_calls"), 4 * 3 + 2);
  EXPECT_EQ(record.at("comm/tp/all_gather_calls"), 4 * 3 + 2 + 1 + 1);
  EXPECT_EQ(record.at("comm/tp/reduce_scatter_bytes"), 14 * tokens * 48 * 4 / 2);
  EXPECT_EQ(record.at("comm/tp/all_gather_bytes"), 14 * tokens * 48 * 4 / 2 + tokens * 4 + kStepSums);
}

TEST(TensorParallelRefusal, HeadsThatTheAxisCannotDivide) {
  const std::string error = refusal({"plugin = \"tensor\""}, {"train.micro_batch_size=12"}, 3);
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(error, "axis 'tp' of size 3 cannot divide kv_heads = 2");
}

TEST(TensorParallelRefusal, AnAxisWithTwoStrategies) {
  EXPECT_HAS(refusal({"plugin = \"tensor\"", "[[parallel]]", "plugin = \"tensor\""}, {}),
             "axis 'tp' is divided by plugin 'tensor' 0.1.0 and by plugin 'tensor' 0.1.0");
}

TEST(TensorParallelRefusal, AnAxisWithoutAStrategy) {
  EXPECT_HAS(refusal({"plugin = \"fsdp2\""}, {"mesh.tp=2"}),
             "mesh.tp = 2, but no strategy of [[parallel]] serves this axis");
}

TEST(TensorParallelRefusal, OptimizerStatesThatMayNotBeDivided) {
  EXPECT_HAS(refusal({"plugin = \"tensor\""}, {"optimizer.plugin=adamw8bit"}),
             "optimizer.plugin = \"adamw8bit\": parameter 'model.layers.0.mlp.down_proj.weight' [48, 96] is divided "
             "along 'tp' into parts of 48 in dim 1, but its optimizer needs whole blocks of 256 elements");
}

TEST(TensorParallelRefusal, CutsWithinBlocksOfFourBits) {
  const std::string error =
      refusal({"plugin = \"tensor\""}, {"quant.plugin=bnb4", "adapter.plugin=lora", "model.config.hidden_size=96"});
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(
      error,
      "is stored as bnb4/nf4, in blocks of 64 elements, and axis 'tp' would cut dim 1 within them, into parts "
      "of 48\nhint: choose blocks of 16 elements or fewer in [quant] if its plugin lets you, leave it out of the "
      "quantization, or set mesh.tp = 1");
}

// 97 tokens: the last rank has rows of padding, which are not stepped.
TEST(TensorParallelOptimizer, StepsBlocksOfAnUnevenVocabulary) {
  const std::string model =
      "plugin = \"llama\"\nconfig = { vocab_size = 97, hidden_size = 512, intermediate_size = 512, num_hidden_layers = "
      "1, num_attention_heads = 4, num_key_value_heads = 2, initializer_range = 0.1 }\n";
  ParallelRun run(Variant::of_bits(0), model);
  const std::vector<std::string> blocks = {"optimizer.plugin=adamw8bit"};
  const Result alone = run(nullptr, 1, blocks), ours = run(&kTensor, 2, blocks);
  EXPECT_LE(largest_relative(ours.losses, alone.losses), 1e-5);
  EXPECT_LE(largest_difference(ours.weights, alone.weights), 5e-3) << "codes may flip";
}

TEST(TensorParallelRefusal, AReductionThatNeverHappens) {
  EXPECT_HAS(refusal({"plugin = \"tensor\""}, {"precision.reduce=bf16"}),
             "precision.reduce = \"bf16\" has no effect: no strategy of [[parallel]] sums gradients");
}

TEST(TensorParallelWarning, OfSequenceParallelismOnOneRank) {
  ParallelRun run(Variant::of_bits(0));
  EXPECT_HAS(run.output_of(&kSequence, 1, {"train.micro_batch_size=12"}),
             "sequence parallelism has no effect, since mesh.tp = 1");
}

}  // namespace
}  // namespace chassis::test
