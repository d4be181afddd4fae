// The choices as text, and their order by cost.
#include "host/compile/recompute.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "host/config/choices.hpp"

namespace chassis {
namespace {

constexpr int64_t kBlocks = 3;

// The mode of each block of a chain.
std::string modes(const Recompute& recompute) {
  std::string all;
  for (int64_t index = 0; index < kBlocks; ++index) all += (index ? " " : "") + text(recompute.at(index));
  return all;
}

TEST(Recompute, HasAReadableText) {
  EXPECT_EQ(text(Recompute::kNone), "none");
  EXPECT_EQ(text(Recompute::kSelective), "selective");
  EXPECT_EQ(text(Recompute::kFull), "full");
  EXPECT_EQ(text(Recompute{.full = 1}), "full in the first block");
  EXPECT_EQ(text(Recompute{.full = 5}), "full in the first 5 blocks");
  EXPECT_EQ(text(Recompute{.selective = 5}), "selective in the first 5 blocks");
  EXPECT_EQ(text(Recompute{2, Recompute::kAll}), "full in the first 2 blocks, selective in the others");
}

TEST(Recompute, HasARowForEachModeOfTheConfiguration) {
  std::vector<std::string_view> choices(kChoiceNames<RecomputeMode>.begin(), kChoiceNames<RecomputeMode>.end()), rows;
  std::erase(choices, to_text(RecomputeMode::kAuto));
  for (const RecomputeModeSpec& spec : kRecomputeModes) {
    rows.push_back(spec.name);
    EXPECT_EQ(&spec_of(spec.mode), &spec);
    EXPECT_EQ(spec.everywhere.strongest(), spec.mode) << spec.name;
    EXPECT_EQ(text(spec.everywhere), spec.name);
  }
  EXPECT_EQ(rows, choices);
}

TEST(Recompute, IsLimitedToTheFirstBlocks) {
  EXPECT_EQ(modes(Recompute::kFull.in_first(2)), "full full none");
  EXPECT_EQ(modes(Recompute::kSelective.in_first(1)), "selective none none");
  EXPECT_EQ(modes(Recompute::kNone.in_first(2)), "none none none");
  EXPECT_EQ(modes(Recompute{1, Recompute::kAll}.in_first(2)), "full selective none");
  EXPECT_EQ(modes(Recompute::kFull.in_first(9)), "full full full");
}

TEST(Recompute, EachChoiceCostsMoreThanTheOneBefore) {
  const std::vector<std::string> all = {"none none none",
                                        "selective none none",
                                        "selective selective none",
                                        "selective selective selective",
                                        "full selective selective",
                                        "full full selective",
                                        "full full full"};
  for (size_t cost = 0; cost < all.size(); ++cost)
    EXPECT_EQ(modes(recompute_of_cost(static_cast<int64_t>(cost), kBlocks)), all[cost]);
  EXPECT_EQ(recompute_of_cost(0, kBlocks), Recompute::kNone);
  EXPECT_EQ(recompute_of_cost(kBlocks, kBlocks), Recompute::kSelective);
  EXPECT_EQ(recompute_of_cost(2 * kBlocks, kBlocks), Recompute::kFull);
}

}  // namespace
}  // namespace chassis
