// Sequence parallelism whose gathers and scatters are rings: the numbers of one process, counted shifts, memory, and
// what is refused.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/planned_rank.hpp"
#include "tests/regress/small_families.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

std::vector<std::string> two_way(int) { return {"mesh.tp=2"}; }
std::vector<std::string> with_positions(int) { return {"mesh.tp=2", "mesh.cp=2"}; }
std::vector<std::string> with_stages(int) { return {"mesh.tp=2", "mesh.pp=2"}; }

const std::vector<std::string> kRingTable = {"plugin = \"tensor\"", "sequence_parallel = true", "overlap = \"ring\""};

const Strategy kRingOf2 = {"ring", kRingTable, no_mesh, 2};

std::vector<StrategyRow> rows() {
  return {{kRingOf2, 2, 0b000000},
          {kRingOf2, 2, 0b111000},
          {kRingOf2, 2, 0b100101},
          {beside("ring_fsdp2", kRingTable, {"plugin = \"fsdp2\""}, two_way, 2), 4, 0b011100},
          {beside("ring_context", kRingTable, {"plugin = \"context\"", "mode = \"ring\""}, with_positions, 4), 4, 0b0},
          {beside("ring_pipeline", kRingTable, {"plugin = \"pipeline\"", "schedule = \"zb_h1\""}, with_stages, 4), 4,
           0b110000}};
}

class TensorOverlap : public testing::TestWithParam<StrategyRow> {};
TEST_P(TensorOverlap, GivesTheNumbersOfOneProcess) { expect_the_numbers_of_one_process(GetParam()); }
INSTANTIATE_TEST_SUITE_P(, TensorOverlap, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });

std::string model_of(const std::string& plugin, int heads, int key_value_heads) {
  return "plugin = \"" + plugin + "\"\nconfig = { vocab_size = 96, hidden_size = 48, intermediate_size = 96, " +
         "num_hidden_layers = 2, num_attention_heads = " + std::to_string(heads) +
         ", num_key_value_heads = " + std::to_string(key_value_heads) + ", head_dim = 8, initializer_range = 0.1 }\n";
}

// 32 positions are 11, 11 and 10.
TEST(TensorOverlapOf3, HasChunksOfUnequalLength) {
  ParallelRun run(Variant::of_bits(0), model_of("qwen3", 6, 3));
  const Result alone = run(nullptr, 1);
  const Strategy three = {"ring3", kRingTable, no_mesh, 3};
  const Result kept = run(&three, 3, {"recompute.mode=none"});
  expect_the_numbers(kept, alone, false, "tp = 3");
  for (const char* mode : {"recompute.mode=selective", "recompute.mode=full"}) {
    const Result again = run(&three, 3, {mode});
    EXPECT_EQ(again.losses, kept.losses) << mode;
    EXPECT_EQ(again.weights, kept.weights) << mode;
  }
  const Result shorter = run(nullptr, 1, {"train.seq_len=7"});
  expect_the_numbers(run(&three, 3, {"train.seq_len=7"}), shorter, false, "tp = 3, 7 positions");
}

// Each rank computes all of k and v, with their biases.
TEST(TensorOverlapOf4, SharesHeads) {
  ParallelRun run(Variant::of_bits(0), model_of("qwen2", 4, 2));
  const Strategy four = {"ring4", kRingTable, no_mesh, 4};
  expect_the_numbers(run(&four, 4), run(nullptr, 1), false, "tp = 4, two heads");
}

class TensorOverlapFamilies : public testing::TestWithParam<SmallFamily> {};
INSTANTIATE_TEST_SUITE_P(Distinct, TensorOverlapFamilies, testing::ValuesIn(distinct_families()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Others, TensorOverlapFamilies, testing::ValuesIn(other_families()),
                         [](const auto& info) { return info.param.name; });
TEST_P(TensorOverlapFamilies, GiveTheNumbersOfOneProcess) {
  ParallelRun run(Variant::of_bits(0), with_even_heads(GetParam()));
  expect_the_numbers(run(&kRingOf2, 2), run(nullptr, 1), false, "ring of " + GetParam().name);
}

// ---- counted on meta tensors

std::string ring_of(const std::string& overlap) {
  return divisible_llama("[[parallel]]\nplugin = \"tensor\"\nsequence_parallel = true\noverlap = \"" + overlap +
                         "\"\n");
}

// q, k and v share a gather, and so do gate and up; o and down have one scatter each. Backward has the reverse of each.
// The embedding's scatter and the head's gather, which have no product of their own, stay.
TEST(TensorOverlapTraffic, IsAsManyBytesInShiftsOfOneChunk) {
  for (const int ways : {2, 4, 6}) {
    SCOPED_TRACE(ways);
    const std::vector<std::string> overrides = {
        "model.config.num_key_value_heads=" + std::to_string(ways == 4 ? 2 : ways),
        "model.config.num_attention_heads=" + std::to_string(ways == 4 ? 4 : 6), "train.seq_len=24"};
    PlannedRank none(ring_of("none"), ways, 1, overrides), ring(ring_of("ring"), ways, 1, overrides);
    Sent before = none.step(), after = ring.step();
    const uint64_t shifts = 8 * 3 * static_cast<uint64_t>(ways - 1), bytes = shifts * (24 / ways) * 48 * 4;
    EXPECT_EQ(after["send tp"], (Count{shifts, bytes}));
    EXPECT_EQ(after["recv tp"], (Count{shifts, 0}));
    EXPECT_EQ(before["reduce_scatter tp"].calls - after["reduce_scatter tp"].calls, 4u * 3);
    EXPECT_EQ(before["all_gather tp"].calls - after["all_gather tp"].calls, 4u * 3);
    EXPECT_EQ(after["reduce_scatter tp"].calls, 2u);
    EXPECT_EQ(before["reduce_scatter tp"].bytes + before["all_gather tp"].bytes,
              after["reduce_scatter tp"].bytes + after["all_gather tp"].bytes + bytes);
    EXPECT_EQ(before["all_reduce tp"], after["all_reduce tp"]);
  }
}

// Rings keep no more for backward: chunks of a value that is kept whole are read from it again.
TEST(TensorOverlapMemory, IsNoMoreThanWithoutRings) {
  for (const int ways : {2, 4})
    for (const char* mode : {"none", "selective", "full"})
      for (const char* rows : {"1", "3"}) {
        SCOPED_TRACE(std::to_string(ways) + " ranks, recompute " + mode + ", rows " + rows);
        uint64_t kept[2], peak[2];
        for (const bool is_ring : {false, true}) {
          PlannedRank rank(
              ring_of(is_ring ? "ring" : "none"), ways, 0,
              {std::string("recompute.mode=") + mode, std::string("train.micro_batch_size=") + rows, "train.seq_len=64",
               "model.config.num_key_value_heads=2", "model.config.num_attention_heads=4"});
          const ResolvedProgram& resolved = rank.session().executor().resolved(Purpose::kTraining);
          kept[is_ring] = 0;
          for (size_t unit = 0; unit < resolved.units.size(); ++unit)
            kept[is_ring] += resolved.running(unit).kept_bytes + resolved.running(unit).saved_bytes;
          rank.step();
          reset_peak_meta_memory();
          rank.step();
          peak[is_ring] = meta_memory_usage(kMetaHost).of(MemoryCategory::kActivations).peak_bytes;
        }
        EXPECT_LE(kept[1], kept[0]);
        EXPECT_LE(peak[1], peak[0]);
        std::printf("kept %.3f, peak %.3f of those without rings\n",
                    static_cast<double>(kept[1]) / static_cast<double>(kept[0]),
                    static_cast<double>(peak[1]) / static_cast<double>(peak[0]));
      }
}

// "memory peak 1.53 MiB planned, 1.52 MiB measured (+0.4 %)"
TEST(TensorOverlapPlan, IsWhatTheRunNeeds) {
  ParallelRun run(Variant::of_bits(0));
  run.output_of(&kRingOf2, 2, {"train.seq_len=512", "train.global_batch_size=4", "train.micro_batch_size=4"});
  const std::string log = run.log(), measured = " measured (";
  const size_t at = log.find(measured);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_LE(std::abs(std::atof(log.c_str() + at + measured.size())), 10.0) << log.substr(at - 80, 120);
}

// The values of the branches are as wide as the adapter's rank, and are gathered and scattered in one piece.
TEST(TensorOverlapAdapter, KeepsItsOwnGathersAndIsCounted) {
  ParallelRun run(Variant::of_bits(0));
  const std::string output = run.output_of(&kRingOf2, 2, {"adapter.plugin=lora", "adapter.rank=4"});
  EXPECT_HAS(output, "overlap along 'tp': the linears of adapters keep their gathers and scatters");
  const auto record = run.first_record();
  const int tokens = 12 * 32, shifts = 8 * 3 - 1;  // nothing is trained before the first layer
  EXPECT_EQ(record.at("comm/tp/send_calls"), shifts);
  EXPECT_EQ(record.at("comm/tp/send_bytes"), shifts * tokens * 48 * 4 / 2);
  // In each layer five branches gather (and scatter their gradients), and two scatter; embedding and head add one each.
  EXPECT_EQ(record.at("comm/tp/reduce_scatter_calls"), 7 * 3 + 2);
}

TEST(TensorOverlapRefusal, WithoutSequenceParallelism) {
  const std::string error = refusal({"plugin = \"tensor\"", "overlap = \"ring\""}, {});
  EXPECT_HAS(error, "run.toml:");
  EXPECT_HAS(error, "overlap = \"ring\" needs sequence_parallel = true");
}

}  // namespace
}  // namespace chassis::test
