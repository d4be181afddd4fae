// A run on several processes gives the numbers of one process under every strategy: losses, gradient norms, weights,
// evaluation. The default rows combine every pair of variants (tied embeddings, accumulation, recompute, frozen
// parameters, uneven dims, bf16); the label slow adds each variant alone for every strategy and number of ranks.
#include <gtest/gtest.h>

#include "tests/regress/batch_strategies.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::vector<BatchRow> all_rows() {
  std::vector<BatchRow> rows;
  for (size_t s = 0; s < kBatchStrategies.size(); ++s)
    for (int ranks : {2, 3, 4})
      for (unsigned v : {0b000000u, 0b100000u, 0b010000u, 0b001000u, 0b000100u, 0b000010u, 0b000001u})
        rows.push_back({s, ranks, v});
  return rows;
}

// Embeddings of 16 MiB in bf16, which are gathered and reduced in place.
std::vector<BatchRow> large_rows() {
  return {{1, 2, 0b1100000u}, {2, 4, 0b1000000u}, {3, 2, 0b1000001u}, {5, 4, 0b1100000u}};
}

void expect_the_numbers_of_one_process(const BatchRow& row) {
  const Variant variant = Variant::of_bits(row.variant);
  ParallelRun run(variant);
  const Result alone = run(nullptr, 1);
  const Strategy& strategy = kBatchStrategies[row.strategy];
  expect_the_numbers(run(&strategy, row.ranks), alone, variant.bf16,
                     strategy.name + std::string(" | ") + std::to_string(row.ranks) + " | " + variant.name());
}

class Parallel : public testing::TestWithParam<BatchRow> {};
TEST_P(Parallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Pairwise, Parallel, testing::ValuesIn(pairwise_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Large, Parallel, testing::ValuesIn(large_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Matrix, Parallel, testing::ValuesIn(all_rows()),
                         [](const auto& info) { return info.param.name(); });

class ParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(Distinct, ParallelFamilies, testing::ValuesIn(distinct_families()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, ParallelFamilies, testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(ParallelFamilies, GiveTheNumbersOfOneProcessOnTwoRanks) {
  ParallelRun run(Variant::of_bits(0), GetParam().model);
  const Result alone = run(nullptr, 1);
  for (const size_t strategy : {1, 5}) {  // fsdp2 and zero3
    SCOPED_TRACE(kBatchStrategies[strategy].name);
    expect_the_numbers(run(&kBatchStrategies[strategy], 2), alone, false,
                       GetParam().name + " | " + kBatchStrategies[strategy].name);
  }
}

// Recomputed nodes read the parameters that the strategy gathered for backward.
TEST(SelectiveRecompute, ChangesNoBitOnTwoRanks) {
  const Strategy fsdp2{"fsdp2", {"plugin = \"fsdp2\""}, no_mesh},
      zero3{"zero3", {"plugin = \"zero\"", "stage = 3"}, no_mesh};
  for (const auto& [strategy, variant] : {std::pair(fsdp2, 0b010000u), std::pair(zero3, 0b100001u)}) {
    ParallelRun run(Variant::of_bits(variant));
    const Result kept = run(&strategy, 2), again = run(&strategy, 2, {"recompute.mode=selective"});
    EXPECT_EQ(again.losses, kept.losses) << strategy.name;
    EXPECT_EQ(again.grad_norms, kept.grad_norms) << strategy.name;
    EXPECT_EQ(again.weights, kept.weights) << strategy.name;
  }
}

// The axis of experts divides the rows of a batch, as data axes do.
TEST(OwnStrategy, DividesRowsAlongTheAxisOfExperts) {
  const Strategy replicas_of_experts{"own_axis", {"plugin = \"own_axis\""}, [](int ranks) -> std::vector<std::string> {
                                       return {"mesh.ep=" + std::to_string(ranks), "mesh.dp_shard=1"};
                                     }};
  for (const unsigned variant : {0b000000u, 0b100001u}) {
    ParallelRun run(Variant::of_bits(variant));
    run.add_stub_plugins();
    const Result alone = run(nullptr, 1);
    expect_the_numbers(run(&replicas_of_experts, 2), alone, Variant::of_bits(variant).bf16, "own_axis | 2");
  }
}

TEST(OwnStrategy, ServesTheAxisOfExpertsNextToAnother) {
  const Strategy beside_fsdp2 = beside(
      "own_experts", {"plugin = \"own_experts\""}, {"plugin = \"fsdp2\""},
      [](int) -> std::vector<std::string> {
        return {"mesh.ep=2", "mesh.dp_shard=2"};
      },
      1);
  ParallelRun run(Variant::of_bits(0));
  run.add_stub_plugins();
  expect_the_numbers(run(&beside_fsdp2, 4), run(nullptr, 1), false, "own_experts, fsdp2 | 4");
}

TEST(OwnStrategy, CannotDivideADimOfAnOpThatExchangesNoRows) {
  const Strategy divides_ffn{
      "own_axis", {"plugin = \"own_axis\"", "dim = \"ffn\""}, [](int) -> std::vector<std::string> {
        return {"mesh.ep=2", "mesh.dp_shard=1"};
      }};
  ParallelRun run(Variant::of_bits(0));
  run.add_stub_plugins();
  const std::string error = refusal_of(run, divides_ffn, 2);
  EXPECT_HAS(error, "plugin 'own_axis' 0.1.0 along axis 'ep' cannot divide 'ffn' of block ");
  EXPECT_HAS(error, "have different rows, and no op exchanges rows yet");
}

TEST(ParallelRows, CoverEveryPairOfVariants) {
  for (unsigned a = 0; a < 6; ++a) {
    for (size_t s = 0; s < kBatchStrategies.size(); ++s) {
      std::set<unsigned> values;
      for (const BatchRow& row : pairwise_rows())
        if (row.strategy == s) values.insert((row.variant >> a) & 1u);
      EXPECT_EQ(values.size(), 2u) << kBatchStrategies[s].name << " and variant " << a;
    }
    for (unsigned b = 0; b < a; ++b) {
      std::set<std::pair<unsigned, unsigned>> values;
      for (const BatchRow& row : pairwise_rows()) values.emplace((row.variant >> a) & 1u, (row.variant >> b) & 1u);
      EXPECT_EQ(values.size(), 4u) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace chassis::test
