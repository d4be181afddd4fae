// A step of every strategy sends what theory says: calls and bytes by axis, counted on meta tensors.
#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "tests/regress/communication_rows.hpp"

namespace chassis::test {
namespace {

class Communication : public testing::TestWithParam<Row> {};

// The second step is compared: some strategies learn the order of units in the first one.
TEST_P(Communication, OfAStepMatchesTheory) {
  const Row& row = GetParam();
  PlannedRank rank(row.toml(), row.num_ranks * row.num_replicas, 0, row.all_overrides());
  rank.step();
  const Sent sent = rank.step();
  EXPECT_EQ(sent, row.expected(row.theory(rank.session())));
  EXPECT_EQ(rank.step(), sent);
}
INSTANTIATE_TEST_SUITE_P(Strategies, Communication, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

// The volumes in the tables of the papers, less the second gather of the last unit, which is not needed.
TEST(CommunicationVolume, MatchesThePapers) {
  const auto volume = [](const std::string& name) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    rank.step();
    uint64_t bytes = 0;
    for (const auto& [what, count] : rank.step()) bytes += count.bytes;
    const Theory t = row.theory(rank.session());
    const auto share = [&](int64_t elements) {
      return static_cast<uint64_t>(elements) * 4 * static_cast<uint64_t>(row.num_ranks - 1) /
             static_cast<uint64_t>(row.num_ranks);
    };
    int64_t head = 0;
    for (const Parameter* p : t.reads(t.num_units() - 1)) head += numel(p->descriptor.global_shape);
    return std::array{bytes, share(rank.parameters().num_elements(false)), share(head)};
  };
  for (const char* name : {"ddp", "zero1", "zero2"}) {
    const auto [bytes, psi, head] = volume(name);
    EXPECT_EQ(bytes, 2 * psi) << name;
  }
  for (const char* name : {"fsdp2_on_4", "zero3"}) {
    const auto [bytes, psi, head] = volume(name);
    EXPECT_EQ(bytes, 3 * psi - head) << name;
  }
}

TEST(CommunicationOfZero3, GathersAtEveryVisitOfTheFirstStep) {
  const Row row = row_named("zero3_accumulating");
  PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
  EXPECT_EQ(rank.step(), zero3(row.theory(rank.session()), Reuse::kNever));
}

TEST(CommunicationOfEvaluation, GathersEveryUnitOnce) {
  for (const char* name : {"fsdp2_on_4", "fsdp2_prefetching", "fsdp2_never", "fsdp2_int", "fsdp2_tied", "zero3",
                           "zero3_prefetching", "zero3_with_room"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    const Theory t = row.theory(rank.session());
    Sent expected;
    const auto cut = std::string_view(name).starts_with("fsdp2") ? Theory::Cut::kRows : Theory::Cut::kRanges;
    for (int u = 0; u < t.num_units(); ++u)
      Theory::ring(expected, "all_gather dp_shard", Theory::part(t.reads(u), cut, t.num_ranks), t.num_ranks, 4);
    rank.step();
    EXPECT_EQ(rank.evaluation(), expected) << name;
  }
  for (const char* name : {"ddp", "zero1", "zero2"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    EXPECT_EQ(rank.evaluation(), Sent()) << name;
  }
}

}  // namespace
}  // namespace chassis::test
