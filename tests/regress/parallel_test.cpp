// A run on several processes gives the numbers of one process under every strategy: losses, gradient norms, weights,
// evaluation. The default rows combine every pair of variants (tied embeddings, accumulation, recompute, frozen
// parameters, uneven dims, bf16); the label slow adds each variant alone for every strategy and number of ranks.
#include <gtest/gtest.h>

#include <array>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::vector<std::string> default_mesh(int) { return {}; }
std::vector<std::string> replicas(int ranks) {
  return {"mesh.dp_replicate=" + std::to_string(ranks == 4 ? 2 : ranks), "mesh.dp_shard=-1"};
}

const std::vector<Strategy> kStrategies = {
    {"ddp", {"plugin = \"ddp\""}, default_mesh},
    {"fsdp2", {"plugin = \"fsdp2\"", "forward_prefetch = 1", "backward_prefetch = 1"}, default_mesh},
    {"hsdp", {"plugin = \"fsdp2\""}, replicas},
    {"zero1", {"plugin = \"zero\"", "stage = 1"}, default_mesh},
    {"zero2", {"plugin = \"zero\"", "stage = 2", "reduce_bucket_size = 2000"}, default_mesh},
    {"zero3",
     {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40", "overlap_comm = \"true\"",
      "stage3_max_reuse_distance = 5000"},
     default_mesh},
    {"fsdp2_offload", {"plugin = \"fsdp2\"", "offload = \"cpu\"", "reduce_every_microbatch = false"}, default_mesh},
    {"zero3_offload",
     {"plugin = \"zero\"", "offload_optimizer_device = \"cpu\"", "offload_param_device = \"cpu\"",
      "offload_optimizer_fraction = 0.5"},
     default_mesh},
};

struct Row {
  size_t strategy;
  int ranks;
  unsigned variant;
  std::string name() const {
    return std::string(kStrategies[strategy].name) + "_on_" + std::to_string(ranks) + "_" +
           Variant::of_bits(variant).name();
  }
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name(); }
};

// Every strategy on 2, 3 and 4 ranks. Each variant is on in some rows and off in others, for every strategy, every
// number of ranks and both states of every other variant.
constexpr std::array<unsigned, 24> kVariants = {0b010111, 0b101010, 0b100100, 0b000011, 0b100010, 0b011101,
                                                0b100000, 0b110111, 0b001000, 0b001000, 0b111100, 0b010011,
                                                0b001101, 0b100001, 0b110110, 0b101110, 0b111110, 0b000001,
                                                0b101100, 0b010011, 0b100110, 0b110110, 0b110010, 0b001101};

std::vector<Row> pairwise_rows() {
  std::vector<Row> rows;
  for (size_t i = 0; i < kVariants.size(); ++i) rows.push_back({i / 3, static_cast<int>(2 + i % 3), kVariants[i]});
  return rows;
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (size_t s = 0; s < kStrategies.size(); ++s)
    for (int ranks : {2, 3, 4})
      for (unsigned v : {0b000000u, 0b100000u, 0b010000u, 0b001000u, 0b000100u, 0b000010u, 0b000001u})
        rows.push_back({s, ranks, v});
  return rows;
}

// Embeddings of 16 MiB in bf16, which are gathered and reduced in place.
std::vector<Row> large_rows() {
  return {{1, 2, 0b1100000u}, {2, 4, 0b1000000u}, {3, 2, 0b1000001u}, {5, 4, 0b1100000u}};
}

void expect_the_numbers_of_one_process(const Row& row) {
  const Variant variant = Variant::of_bits(row.variant);
  ParallelRun run(variant);
  const Result alone = run(nullptr, 1);
  const Strategy& strategy = kStrategies[row.strategy];
  expect_the_numbers(run(&strategy, row.ranks), alone, variant.bf16,
                     strategy.name + std::string(" | ") + std::to_string(row.ranks) + " | " + variant.name());
}

class Parallel : public testing::TestWithParam<Row> {};
TEST_P(Parallel, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Pairwise, Parallel, testing::ValuesIn(pairwise_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Large, Parallel, testing::ValuesIn(large_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Matrix, Parallel, testing::ValuesIn(all_rows()),
                         [](const auto& info) { return info.param.name(); });

class ParallelFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(, ParallelFamilies, testing::ValuesIn(small_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(ParallelFamilies, GiveTheNumbersOfOneProcessOnTwoRanks) {
  ParallelRun run(Variant::of_bits(0), GetParam().model);
  const Result alone = run(nullptr, 1);
  for (const size_t strategy : {1, 5}) {  // fsdp2 and zero3
    SCOPED_TRACE(kStrategies[strategy].name);
    expect_the_numbers(run(&kStrategies[strategy], 2), alone, false,
                       GetParam().name + " | " + kStrategies[strategy].name);
  }
}

// Recomputed nodes read the parameters that the strategy gathered for backward.
TEST(SelectiveRecompute, ChangesNoBitOnTwoRanks) {
  const Strategy fsdp2{"fsdp2", {"plugin = \"fsdp2\""}, default_mesh},
      zero3{"zero3", {"plugin = \"zero\"", "stage = 3"}, default_mesh};
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
    for (size_t s = 0; s < kStrategies.size(); ++s) {
      std::set<unsigned> values;
      for (const Row& row : pairwise_rows())
        if (row.strategy == s) values.insert((row.variant >> a) & 1u);
      EXPECT_EQ(values.size(), 2u) << kStrategies[s].name << " and variant " << a;
    }
    for (unsigned b = 0; b < a; ++b) {
      std::set<std::pair<unsigned, unsigned>> values;
      for (const Row& row : pairwise_rows()) values.emplace((row.variant >> a) & 1u, (row.variant >> b) & 1u);
      EXPECT_EQ(values.size(), 4u) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace chassis::test
