// A plan that counts what a pipeline's rank repeats equals one that rehearses every micro-batch.
#include <gtest/gtest.h>

#include "small_plan.hpp"

namespace chassis {
namespace {

void expect_same(const Plan& plan, const Plan& full) {
  ASSERT_EQ(plan.ranks.size(), full.ranks.size());
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const RankPlan &rank = plan.ranks[i], &other = full.ranks[i];
    EXPECT_EQ(rank.ranks, other.ranks);
    EXPECT_EQ(rank.step, other.step);
    EXPECT_EQ(rank.start, other.start);
    EXPECT_EQ(rank.load_peak_bytes, other.load_peak_bytes);
    EXPECT_EQ(rank.export_peak_bytes, other.export_peak_bytes);
    EXPECT_EQ(rank.host_peak_bytes, other.host_peak_bytes);
    EXPECT_EQ(rank.timeline.all(), other.timeline.all());
    EXPECT_TRUE(other.timeline.repeats.empty());
    ASSERT_EQ(rank.traffic.size(), other.traffic.size());
    for (size_t t = 0; t < rank.traffic.size(); ++t) {
      EXPECT_EQ(rank.traffic[t].group, other.traffic[t].group);
      EXPECT_EQ(rank.traffic[t].op, other.traffic[t].op);
      EXPECT_EQ(rank.traffic[t].calls, other.traffic[t].calls);
      EXPECT_EQ(rank.traffic[t].bytes, other.traffic[t].bytes);
    }
  }
  EXPECT_EQ(plan.modes, full.modes);
}

bool has_repeats(const Plan& plan) {
  return std::any_of(plan.ranks.begin(), plan.ranks.end(),
                     [](const RankPlan& rank) { return !rank.timeline.repeats.empty(); });
}

// Pipelines of 2 ranks, alone or with another strategy that doubles the ranks.
Plan plan_both_ways(const std::string& schedule, int num_microbatches, const std::string& beside,
                    std::vector<std::string> overrides = {}) {
  std::string tables = "plugin = \"pipeline\"\nschedule = \"" + schedule + "\"\n";
  if (!beside.empty()) tables += "[[parallel]]\nplugin = \"" + beside + "\"\n";
  const int world_size = beside.empty() ? 2 : 4;
  overrides.push_back("mesh.pp=2");
  overrides.push_back("train.micro_batch_size=1");
  overrides.push_back("train.global_batch_size=" + std::to_string(num_microbatches * world_size / 2));
  PlanRequest request = request_of(with_strategy(tables), world_size, std::move(overrides));
  Plan plan = make_plan(request);
  request.counts_repeats = false;
  expect_same(plan, make_plan(request));
  return plan;
}

TEST(PlanRepeats, EqualTheFullRehearsalUnderEverySchedule) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"})
    for (const int num_microbatches : {2, 10, 26}) {
      SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(num_microbatches));
      const Plan plan = plan_both_ways(schedule, num_microbatches, "", {"model.config.tie_word_embeddings=true"});
      if (num_microbatches != 10) {
        EXPECT_EQ(has_repeats(plan), num_microbatches == 26);
      }
    }
}

TEST(PlanRepeats, EqualTheFullRehearsalBesideEveryStrategy) {
  for (const char* beside : {"fsdp2", "zero", "ddp"})
    for (const char* schedule : {"gpipe", "1f1b", "zbv"}) {
      SCOPED_TRACE(std::string(schedule) + ", " + beside);
      EXPECT_TRUE(has_repeats(plan_both_ways(schedule, 26, beside)));
    }
}

TEST(PlanRepeats, EqualTheFullRehearsalWithMemoryOfTheHost) {
  const Plan plan = plan_both_ways("interleaved", 26, "fsdp2",
                                   {"run.device=\"cuda\"", "precision.compute=fp32", "parallel.1.offload=\"cpu\"",
                                    "parallel.1.reshard_after_forward=never", "recompute.mode=full"});
  EXPECT_TRUE(has_repeats(plan));
}

TEST(PlanRepeats, AreRehearsedIfTheyDiffer) {
  const std::string stub =
      std::string("plugins.path=[\"") + CHASSIS_TEST_PLUGIN_DIR + "\", \"" + CHASSIS_TEST_STUB_DIR + "\"]";
  const Plan plan = plan_both_ways("1f1b", 26, "every_third", {stub});
  EXPECT_FALSE(has_repeats(plan));
}

TEST(PlanRepeats, AreNotRehearsedForMoreMicrobatches) {
  const Plan few = plan_both_ways("1f1b", 26, "");
  const Plan many = make_plan(request_of(with_strategy("plugin = \"pipeline\""), 2,
                                         {"mesh.pp=2", "train.micro_batch_size=1", "train.global_batch_size=4000"}));
  for (size_t i = 0; i < few.ranks.size(); ++i)
    EXPECT_EQ(many.ranks[i].timeline.samples.size(), few.ranks[i].timeline.samples.size());
}

}  // namespace
}  // namespace chassis
