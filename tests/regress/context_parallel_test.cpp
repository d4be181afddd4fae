// Context parallelism in every mode, alone and with other strategies: the numbers of one process, counted bytes, and
// what is refused.
#include <gtest/gtest.h>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::vector<std::string> two_way(int) { return {"mesh.cp=2"}; }
std::vector<std::string> two_by_two(int) { return {"mesh.cp=2", "mesh.tp=2"}; }

Strategy with_context(const char* name, const char* mode, const std::vector<std::string>& other) {
  return beside(name, {"plugin = \"context\"", std::string("mode = \"") + mode + "\""}, other, two_way, 2);
}

const Strategy kAllToAll = {"all_to_all", {"plugin = \"context\""}, no_mesh, 2},
               kGather = {"gather", {"plugin = \"context\"", "mode = \"gather\""}, no_mesh, 2},
               kRing = {"ring", {"plugin = \"context\"", "mode = \"ring\""}, no_mesh, 2};

Strategy with_tensor(const char* name, const char* mode, bool sequence) {
  Strategy out = with_context(name, mode, {"plugin = \"tensor\""});
  if (sequence) out.toml.emplace_back("sequence_parallel = true");
  out.mesh = two_by_two;
  out.tensor_ways = 4;
  return out;
}

std::vector<StrategyRow> rows() {
  const Strategy fsdp2 = with_context("all_to_all_fsdp2", "all_to_all", {"plugin = \"fsdp2\""}),
                 zero3 = with_context("gather_zero3", "gather",
                                      {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40"}),
                 ddp = with_context("gather_ddp", "gather", {"plugin = \"ddp\""}),
                 zero2 = with_context("all_to_all_zero2", "all_to_all", {"plugin = \"zero\"", "stage = 2"}),
                 ring_fsdp2 = with_context("ring_fsdp2", "ring", {"plugin = \"fsdp2\""}),
                 ring_zero1 = with_context("ring_zero1", "ring", {"plugin = \"zero\"", "stage = 1"});
  const Strategy three = {"ring_3", kRing.toml, no_mesh, 3}, four = {"ring_4", kRing.toml, no_mesh, 4},
                 gather_3 = {"gather_3", kGather.toml, no_mesh, 3}, gather_4 = {"gather_4", kGather.toml, no_mesh, 4};
  return {{kAllToAll, 2, 0b000000}, {kAllToAll, 2, 0b111010},  {kAllToAll, 2, 0b010100},  {kAllToAll, 2, 0b100001},
          {kGather, 2, 0b000010},   {kGather, 2, 0b111000},    {kGather, 2, 0b100101},    {fsdp2, 4, 0b100010},
          {fsdp2, 4, 0b011100},     {zero3, 4, 0b101110},      {ddp, 4, 0b010000},        {zero2, 4, 0b110001},
          {kRing, 2, 0b000000},     {kRing, 2, 0b111010},      {kRing, 2, 0b100101},      {three, 3, 0b000010},
          {four, 4, 0b101000},      {ring_fsdp2, 4, 0b111100}, {ring_zero1, 4, 0b110001}, {gather_3, 3, 0b000001},
          {gather_3, 3, 0b101110},  {gather_4, 4, 0b000010}};
}

class ContextParallel : public testing::TestWithParam<StrategyRow> {};
TEST_P(ContextParallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(, ContextParallel, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });

// Heads are divided by both axes, or positions by all of them.
TEST(ContextAndTensorParallel, GiveTheNumbersOfOneProcess) {
  const std::string model =
      "plugin = \"qwen3\"\nconfig = { vocab_size = 97, hidden_size = 32, intermediate_size = 64, num_hidden_layers = "
      "2, num_attention_heads = 8, num_key_value_heads = 4, head_dim = 8, initializer_range = 0.1, "
      "tie_word_embeddings = true }\n";
  ParallelRun run(Variant::of_bits(0), model);
  const Result alone = run(nullptr, 1);
  for (const Strategy& strategy :
       {with_tensor("tp_all_to_all", "all_to_all", false), with_tensor("tp_gather", "gather", false),
        with_tensor("tp_sequence_gather", "gather", true), with_tensor("tp_ring", "ring", false),
        with_tensor("tp_sequence_ring", "ring", true)})
    expect_the_numbers(run(&strategy, 4), alone, false, strategy.name);
}

// One key-value head for two ranks; and with "gather" heads that these cannot divide.
TEST(ContextParallelHeads, MayBeFewerThanRanks) {
  const auto model = [](int heads, int kv_heads) {
    return "plugin = \"qwen2\"\nconfig = { vocab_size = 96, hidden_size = 24, intermediate_size = 64, "
           "num_hidden_layers = 2, num_attention_heads = " +
           std::to_string(heads) + ", num_key_value_heads = " + std::to_string(kv_heads) +
           ", initializer_range = 0.1 }\n";
  };
  ParallelRun one(Variant::of_bits(0), model(4, 1));
  expect_the_numbers(one(&kAllToAll, 2), one(nullptr, 1), false, "all_to_all, one key-value head");
  ParallelRun odd(Variant::of_bits(0), model(3, 3));
  const Result alone = odd(nullptr, 1);
  expect_the_numbers(odd(&kGather, 2), alone, false, "gather, three heads");
  expect_the_numbers(odd(&kRing, 2), alone, false, "ring, three heads");
}

// Positions that the ranks cannot divide evenly are padded, in training, evaluation and generation.
TEST(ContextParallelPositions, MayBeUneven) {
  ParallelRun run(Variant::of_bits(0));
  const std::vector<std::string> odd = {"train.seq_len=31"};
  const Result alone = run(nullptr, 1, odd);
  for (const Strategy* strategy : {&kAllToAll, &kGather, &kRing})
    expect_the_numbers(run(strategy, 2, odd), alone, false, std::string("odd positions, ") + strategy->name);
  const std::vector<std::string> few = {"train.seq_len=3"};  // two of eight pieces are padding
  const Strategy four = {"ring_4", kRing.toml, no_mesh, 4}, gather = {"gather_4", kGather.toml, no_mesh, 4};
  const Result alone_few = run(nullptr, 1, few);
  expect_the_numbers(run(&four, 4, few), alone_few, false, "three positions, ring of four");
  expect_the_numbers(run(&gather, 4, few), alone_few, false, "three positions, gathered by four");
}

// Every provider of attention computes the parts of a ring, and pieces of rows.
TEST(ContextParallelPieces, RunWithEveryProvider) {
  for (const char* provider : {"attention.plugin=interval", "attention.plugin=naive", "attention.plugin=sdpa"}) {
    ParallelRun run(Variant::of_bits(0));
    const std::vector<std::string> with_provider = {provider};
    const Result alone = run(nullptr, 1, with_provider);
    for (const Strategy* strategy : {&kRing, &kGather})
      expect_the_numbers(run(strategy, 2, with_provider), alone, false, std::string(strategy->name) + ", " + provider);
  }
}

TEST(ContextParallelPieces, AreTheSameWhenRecomputed) {
  for (const Strategy* strategy : {&kRing, &kGather}) {
    ParallelRun run(Variant::of_bits(0));
    const Result kept = run(strategy, 2);
    for (const char* mode : {"recompute.mode=full", "recompute.mode=selective"}) {
      const Result again = run(strategy, 2, {mode});
      EXPECT_EQ(again.losses, kept.losses) << strategy->name << " " << mode;
      EXPECT_EQ(again.weights, kept.weights) << strategy->name << " " << mode;
    }
  }
}

constexpr int kStepSums = 6 * 8;  // loss, gradient norm and requests, once a step

// Jacobs et al. 2023: (2 + 2 · kv heads / heads) · (N - 1) / N² of an activation, in each direction of a layer.
TEST(ContextParallelTraffic, IsFourExchangesPerLayerAndDirection) {
  ParallelRun run(Variant::of_bits(0));
  run(&kAllToAll, 2);
  const auto record = run.first_record();
  const int activation = 12 * 32 * 48 * 4, kv = activation / 3;
  EXPECT_EQ(record.at("comm/cp/all_to_all_calls"), 2 * 4 * 3);
  EXPECT_EQ(record.at("comm/cp/all_to_all_bytes"), 2 * 3 * (2 * activation + 2 * kv) / 4);
  EXPECT_EQ(record.at("comm/cp/all_gather_bytes"), kStepSums);
}

// Keys and values are gathered; their gradients are summed and scattered.
TEST(ContextParallelTraffic, IsTwoGathersPerLayerAndTwoScatters) {
  ParallelRun run(Variant::of_bits(0));
  run(&kGather, 2);
  const auto record = run.first_record();
  const int kv = 12 * 32 * 16 * 4;
  EXPECT_EQ(record.at("comm/cp/all_gather_calls"), 2 * 3 + 1);
  EXPECT_EQ(record.at("comm/cp/all_gather_bytes"), 2 * 3 * kv / 2 + kStepSums);
  EXPECT_EQ(record.at("comm/cp/reduce_scatter_calls"), 2 * 3);
  EXPECT_EQ(record.at("comm/cp/reduce_scatter_bytes"), 2 * 3 * kv / 2);
}

// Liu et al. 2023: keys and values travel N - 1 times in each direction, their gradients N times in fp32.
TEST(ContextParallelTraffic, IsARingOfKeysValuesAndTheirGradients) {
  ParallelRun run(Variant::of_bits(0));
  const Strategy four = {"ring_4", kRing.toml, no_mesh, 4};
  run(&four, 4);
  const auto record = run.first_record();
  const int of_a_rank = 2 * 12 * 32 / 4 * 16 * 4;  // keys and values
  EXPECT_EQ(record.at("comm/cp/send_calls"), 3 * (3 + 3 + 4));
  EXPECT_EQ(record.at("comm/cp/send_bytes"), 3 * (3 + 3 + 4) * of_a_rank);
  EXPECT_EQ(record.at("comm/cp/all_gather_calls"), 1) << "of the step's sums";
}

class ContextParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(Distinct, ContextParallelFamilies, testing::ValuesIn(distinct_families()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, ContextParallelFamilies, testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(ContextParallelFamilies, GiveTheNumbersOfOneProcess) {
  ParallelRun run(Variant::of_bits(0), with_even_heads(GetParam()));
  if (GetParam().name == "phi3") {
    EXPECT_HAS(refusal_of(run, kGather, 2), "chooses its frequencies by the largest position of a row");
    return;
  }
  const Result alone = run(nullptr, 1);
  std::vector<const Strategy*> strategies = {&kAllToAll, &kGather};
  const bool has_own_mask = GetParam().name.starts_with("gemma") || GetParam().name == "gpt2";
  if (has_own_mask) strategies.push_back(&kRing);
  for (const Strategy* strategy : strategies)
    expect_the_numbers(run(strategy, 2), alone, false, std::string(strategy->name) + " of " + GetParam().name);
}

TEST(ContextParallelRefusal, HeadsThatTheAxisCannotDivide) {
  const std::string error = refusal({"plugin = \"context\""}, {"train.micro_batch_size=12", "mesh.cp=4"}, 4);
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(error, "axis 'cp' of size 4 cannot divide heads = 6");
  EXPECT_HAS(error, "choose a size that divides 6, or mode = \"ring\" or \"gather\"");
  EXPECT_HAS(refusal({"plugin = \"context\""}, {"train.micro_batch_size=12", "mesh.cp=3"}, 3),
             "cannot divide kv_heads = 2 of 'attention'\nhint: choose a size that divides 2 or is a multiple of it");
  EXPECT_HAS(refusal({"plugin = \"context\""},
                     {"train.micro_batch_size=12", "model.config.num_attention_heads=2", "mesh.cp=4"}, 4),
             "axis 'cp' of size 4 cannot divide heads = 2");
}

TEST(ContextParallelRefusal, HeadsThatBothAxesCannotDivide) {
  EXPECT_HAS(refusal({"plugin = \"context\"", "[[parallel]]", "plugin = \"tensor\""},
                     {"train.micro_batch_size=12", "mesh.cp=2", "mesh.tp=2"}, 4),
             "axis 'tp' and the axes before it, 4 ranks in all, cannot divide heads = 6");
}

TEST(ContextParallelRefusal, AnUnknownMode) {
  EXPECT_HAS(refusal({"plugin = \"context\"", "mode = \"rings\""}, {}), "rings");
}

TEST(ContextParallelRefusal, DropoutOfPositionsThatTwoAxesDivide) {
  EXPECT_HAS(
      refusal({"plugin = \"context\"", "mode = \"gather\"", "[[parallel]]", "plugin = \"tensor\"",
               "sequence_parallel = true"},
              {"train.micro_batch_size=12", "mesh.cp=2", "mesh.tp=2", "adapter.plugin=lora", "adapter.dropout=0.1"}, 4),
      "chooses elements by their place in the whole value, but its input is divided along 'T' by two axes");
}

}  // namespace
}  // namespace chassis::test
