// With packing "none" micro-batches are as long as their longest row. Under every strategy a run gives the numbers of
// one process that computes all rows up to seq_len.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "tests/regress/parallel_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

// Documents of 2 to 90 tokens: the lengths are 16, 32, 48, 64, 80 and 96.
const std::vector<std::string> kShort = {"data.packing=none", "train.seq_len=96"};
constexpr unsigned kAccumulates = 1u << 4;  // micro-batches of one row

std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.begin(), kShort.begin(), kShort.end());
  return more;
}
const std::vector<std::string> kWhole = with({"data.pad_to_seq_len=true"});

std::vector<std::string> two_ways_of(const char* axis) { return {std::string("mesh.") + axis + "=2"}; }
std::vector<std::string> two_of_tp(int) { return two_ways_of("tp"); }
std::vector<std::string> two_of_cp(int) { return two_ways_of("cp"); }
std::vector<std::string> two_of_pp(int) { return two_ways_of("pp"); }
std::vector<std::string> two_of_cp_and_tp(int) { return {"mesh.cp=2", "mesh.tp=2"}; }

std::vector<StrategyRow> rows() {
  const std::vector<std::string> ddp = {"plugin = \"ddp\""}, fsdp2 = {"plugin = \"fsdp2\""},
                                 zero3 = {"plugin = \"zero\"", "stage3_param_persistence_threshold = 40"},
                                 tensor = {"plugin = \"tensor\""},
                                 sequence = {"plugin = \"tensor\"", "sequence_parallel = true"},
                                 all_to_all = {"plugin = \"context\""},
                                 ring = {"plugin = \"context\"", "mode = \"ring\""},
                                 gather = {"plugin = \"context\"", "mode = \"gather\""},
                                 stages = {"plugin = \"pipeline\""};
  return {{{"ddp", ddp, no_mesh}, 2, 0},
          {{"fsdp2", fsdp2, no_mesh}, 2, kAccumulates},
          {{"zero3", zero3, no_mesh}, 2, kAccumulates},
          {{"tensor", tensor, no_mesh, 2}, 2, kAccumulates},
          {{"sequence", sequence, no_mesh, 2}, 2, kAccumulates},
          {{"all_to_all", all_to_all, no_mesh, 2}, 2, kAccumulates},
          {{"ring", ring, no_mesh, 2}, 2, kAccumulates},
          {{"gather", gather, no_mesh, 2}, 2, kAccumulates},
          {{"pipeline", stages, no_mesh, 2}, 2, kAccumulates}};
}

std::vector<StrategyRow> rows_of_hybrids() {
  std::vector<std::string> overlapped = {"plugin = \"tensor\"", "sequence_parallel = true", "overlap = \"ring\""};
  const std::vector<std::string> fsdp2 = {"plugin = \"fsdp2\""}, zero2 = {"plugin = \"zero\"", "stage = 2"},
                                 ring = {"plugin = \"context\"", "mode = \"ring\""},
                                 gather = {"plugin = \"context\"", "mode = \"gather\""},
                                 sequence = {"plugin = \"tensor\"", "sequence_parallel = true"};
  return {{{"sequence_ring", overlapped, no_mesh, 2}, 2, kAccumulates},
          {{"ring_3", ring, no_mesh, 3}, 3, kAccumulates},
          {{"gather_4", gather, no_mesh, 4}, 4, kAccumulates},
          {{"zero2", zero2, no_mesh}, 3, kAccumulates},
          {beside("ring_fsdp2", ring, fsdp2, two_of_cp, 2), 4, kAccumulates},
          {beside("tensor_fsdp2", sequence, fsdp2, two_of_tp, 2), 4, kAccumulates},
          {beside("ring_sequence", ring, sequence, two_of_cp_and_tp, 4), 4, kAccumulates},
          {beside("pipeline_fsdp2", {"plugin = \"pipeline\"", "schedule = \"zb_h1\""}, fsdp2, two_of_pp, 2), 4,
           kAccumulates},
          {beside("zbv_fsdp2", {"plugin = \"pipeline\"", "schedule = \"zbv\""}, fsdp2, two_of_pp, 2), 4, kAccumulates}};
}

// One process that computes whole rows, which many runs are compared with.
struct WholeRows {
  explicit WholeRows(unsigned variant) : run(Variant::of_bits(variant)), result(run(nullptr, 1, kWhole)) {}
  ParallelRun run;
  Result result;
};
WholeRows& whole_rows(unsigned variant) {
  static std::map<unsigned, std::unique_ptr<WholeRows>> known;
  std::unique_ptr<WholeRows>& found = known[variant];
  if (!found) found = std::make_unique<WholeRows>(variant);
  return *found;
}

class Padding : public testing::TestWithParam<StrategyRow> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Padding, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Hybrids, Padding, testing::ValuesIn(rows_of_hybrids()),
                         [](const auto& info) { return info.param.name(); });

TEST_P(Padding, IsNotComputedAndChangesNoNumber) {
  const StrategyRow& row = GetParam();
  WholeRows& whole = whole_rows(row.variant);
  expect_the_numbers(whole.run(&row.strategy, row.ranks, kShort), whole.result, false, row.name());
  EXPECT_HAS(whole.run.log(), "of padding not computed");
}

TEST(PaddingOnOneRank, IsNotComputedAndChangesNoNumber) {
  WholeRows& whole = whole_rows(kAccumulates);
  whole.run.output_of(nullptr, 1, kWhole);
  const std::string padded = whole.run.log();
  EXPECT_EQ(padded.find("of padding not computed"), std::string::npos) << padded;
  const Result cut = whole.run(nullptr, 1, kShort);
  EXPECT_HAS(whole.run.log(), "as long as their longest row, rounded up to one of 6 lengths up to 96");
  EXPECT_HAS(whole.run.log(), "of padding not computed");
  expect_the_numbers(cut, whole.result, false, "one rank");
  for (const char* mode : {"recompute.mode=full", "recompute.mode=selective"}) {
    const Result again = whole.run(nullptr, 1, with({mode}));
    EXPECT_EQ(again.losses, cut.losses) << mode;
    EXPECT_EQ(again.weights, cut.weights) << mode;
  }
}

// Rows of one micro-batch that differ, and a last evaluation batch that only one rank has.
TEST(PaddingOfUnequalRows, ChangesNoNumber) {
  WholeRows& whole = whole_rows(kAccumulates);
  const Strategy fsdp2 = {"fsdp2", {"plugin = \"fsdp2\""}, no_mesh};
  const Result cut = whole.run(&fsdp2, 2, with({"train.micro_batch_size=2"}));
  expect_the_numbers(cut, whole.result, false, "fsdp2, two rows");
  expect_the_numbers(whole.run(nullptr, 1, with({"train.micro_batch_size=3", "attention.plugin=interval"})),
                     whole.result, false, "interval, three rows");
}

TEST(PaddingAgain, GivesTheSameBitsAlsoAfterAKill) {
  const Strategy fsdp2 = {"fsdp2", {"plugin = \"fsdp2\""}, no_mesh};
  ParallelRun& run = whole_rows(kAccumulates).run;
  const Result first = run(&fsdp2, 2, kShort), second = run(&fsdp2, 2, kShort);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.weights, second.weights);
  run.output_of(&fsdp2, 2, with({"run.max_steps=3"}));
  const Result resumed = run.goes_on(&fsdp2, 2, kShort);
  EXPECT_EQ(first.losses, resumed.losses);
  EXPECT_EQ(first.grad_norms, resumed.grad_norms);
  EXPECT_EQ(first.evaluations.back(), resumed.evaluations.back());  // the part before evaluates at its own end
  EXPECT_EQ(first.weights, resumed.weights);
}

}  // namespace
}  // namespace chassis::test
