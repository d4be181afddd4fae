// Memory of each rank, counted by the categories of the memory service: its shards between steps, and a few whole units
// during a step.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/regress/planned_rank.hpp"

namespace chassis::test {
namespace {

struct Strategy {
  const char* name;
  std::string table;
  int num_ranks;
  uint64_t num_ahead;      // units that are prefetched
  uint64_t num_gradients;  // units whose whole gradients wait for their reduction
  std::vector<std::string> overrides = {};
  friend void PrintTo(const Strategy& strategy, std::ostream* out) { *out << strategy.name; }
};

const std::string kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n";
// A bucket has as many elements as a layer.
const std::string kZero3 =
    "[[parallel]]\nplugin = \"zero\"\nstage = 3\nstage3_param_persistence_threshold = 0\nstage3_max_reuse_distance = "
    "0\n"
    "reduce_bucket_size = 20000\n";
const std::string kOverlap = "overlap_comm = \"true\"\nstage3_prefetch_bucket_size = 20800\n";
const std::string kUneven =
    "model.config={vocab_size=101,hidden_size=36,intermediate_size=57,num_hidden_layers=3,num_attention_heads=6,num_"
    "key_value_heads=2}";

class StrategyMemory : public testing::TestWithParam<Strategy> {};

MemoryUsage usage() { return meta_memory_usage(kMetaHost); }
uint64_t live(MemoryCategory category) { return usage().of(category).live_bytes; }
uint64_t peak(MemoryCategory category) { return usage().of(category).peak_bytes; }

TEST_P(StrategyMemory, IsOneShardAndAFewUnits) {
  const Strategy& strategy = GetParam();
  std::vector<std::string> overrides = strategy.overrides;
  overrides.push_back("train.global_batch_size=" + std::to_string(2 * strategy.num_ranks));
  for (int r = 0; r < strategy.num_ranks; ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    PlannedRank rank(divisible_llama(strategy.table), strategy.num_ranks, r, overrides);
    uint64_t elements = 0, unit = 0,
             padded = 0;  // for the model, its largest unit, and that unit with padded rows
    for (const auto& p : rank.parameters().all()) elements += static_cast<uint64_t>(numel(p->descriptor.global_shape));
    for (size_t u = 0; u < rank.session().program().num_units(); ++u) {
      int64_t sum = 0, rows = 0;
      for (const Parameter* p : rank.parameters().of_unit(u)) {
        const Shape& shape = p->descriptor.global_shape;
        sum += numel(shape);
        rows +=
            (shape[0] + strategy.num_ranks - 1) / strategy.num_ranks * strategy.num_ranks * (numel(shape) / shape[0]);
      }
      unit = std::max(unit, static_cast<uint64_t>(sum));
      padded = std::max(padded, static_cast<uint64_t>(rows));
    }
    const uint64_t num_ranks = static_cast<uint64_t>(strategy.num_ranks);
    rank.step();
    reset_peak_meta_memory();
    rank.step();

    // fp32: parameters, gradients and two moments of AdamW.
    const uint64_t held =
        live(MemoryCategory::kParameters) + live(MemoryCategory::kGradients) + live(MemoryCategory::kOptimizer);
    EXPECT_LE(held, 16 * elements / num_ranks + 4 * unit);
    EXPECT_EQ(live(MemoryCategory::kGathered), 0u);
    EXPECT_EQ(live(MemoryCategory::kCommunication), 0u);

    const uint64_t compute_bytes = rank.parameters().compute() == Dtype::bf16 ? 2 : 4;
    // A gather and a reduction each keep a buffer until they are waited for: a whole unit and one rank's part of it.
    const uint64_t buffer = 4 * (padded + padded / num_ranks);
    EXPECT_LE(peak(MemoryCategory::kGathered), (strategy.num_ahead + 1) * unit * compute_bytes);
    EXPECT_LE(peak(MemoryCategory::kCommunication), (strategy.num_ahead + 1 + strategy.num_gradients) * buffer);
    EXPECT_EQ(peak(MemoryCategory::kParameters), live(MemoryCategory::kParameters)) << "shards keep their size";
    EXPECT_LE(peak(MemoryCategory::kGradients), live(MemoryCategory::kGradients) + strategy.num_gradients * 4 * unit);
    const auto units = [&](MemoryCategory category) {
      return static_cast<double>(peak(category)) / static_cast<double>(4 * unit);
    };
    if (r > 0) continue;
    std::printf("%s on %d: %.3f of the whole; at most %.2f units gathered, %.2f in buffers, %.2f of gradients\n",
                strategy.name, strategy.num_ranks, static_cast<double>(held) / static_cast<double>(16 * elements),
                units(MemoryCategory::kGathered), units(MemoryCategory::kCommunication),
                units(MemoryCategory::kGradients));
  }
  EXPECT_EQ(usage().live_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, StrategyMemory,
    testing::Values(Strategy{"fsdp2_on_2", kFsdp2, 2, 0, 1}, Strategy{"fsdp2_on_4", kFsdp2, 4, 0, 1},
                    Strategy{"fsdp2_one_ahead", kFsdp2 + "forward_prefetch = 1\nbackward_prefetch = 1\n", 4, 1, 1},
                    Strategy{"fsdp2_two_ahead", kFsdp2 + "forward_prefetch = 2\nbackward_prefetch = 2\n", 4, 2, 1},
                    Strategy{"fsdp2_bf16", kFsdp2, 2, 0, 1, {"precision.compute=bf16"}},
                    Strategy{"fsdp2_recomputing", kFsdp2 + "backward_prefetch = 1\n", 2, 1, 1, {"recompute.mode=full"}},
                    Strategy{"fsdp2_uneven", kFsdp2, 4, 0, 1, {kUneven}}, Strategy{"zero3_on_2", kZero3, 2, 0, 2},
                    Strategy{"zero3_on_4", kZero3, 4, 0, 2}, Strategy{"zero3_one_ahead", kZero3 + kOverlap, 4, 1, 2},
                    Strategy{"zero3_bf16", kZero3, 2, 0, 2, {"precision.compute=bf16"}},
                    Strategy{"zero3_uneven", kZero3, 4, 0, 2, {kUneven, "parallel.0.reduce_bucket_size=10000"}}),
    [](const auto& info) { return info.param.name; });

// Persistent parameters add exactly their size to the shards.
TEST(ZeroPersistence, KeepsSmallParametersWhole) {
  uint64_t held[2];
  uint64_t small = 0;
  for (const int64_t threshold : {0, 1000}) {
    PlannedRank rank(divisible_llama("[[parallel]]\nplugin = \"zero\"\nstage3_param_persistence_threshold = " +
                                     std::to_string(threshold) + "\n"),
                     4, 0, {"train.global_batch_size=8"});
    rank.step();
    held[threshold > 0] = live(MemoryCategory::kParameters);
    for (const auto& p : rank.parameters().all())
      if (const int64_t n = numel(p->descriptor.global_shape); n <= threshold) small += static_cast<uint64_t>(n);
  }
  ASSERT_GT(small, 0u);
  EXPECT_EQ(held[1], held[0] + 4 * small * 3 / 4);
}

}  // namespace
}  // namespace chassis::test
