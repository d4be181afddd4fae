#include "host/train/best_evaluation.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "host/base/log.hpp"

namespace chassis {
namespace {

BestEvaluation best_loss(int64_t patience, const std::string& set = "eval") {
  return BestEvaluation(set, Measure{}, patience);
}
BestEvaluation best_score(int64_t patience, const std::string& set = "eval") {
  return BestEvaluation(set, Measure{"score", true}, patience);
}

TEST(BestEvaluation, FindsTheLowestLossAndCountsTheOthers) {
  BestEvaluation best = best_loss(2);
  EXPECT_EQ(best.step(), -1);
  EXPECT_FALSE(best.add(1, NAN));
  EXPECT_TRUE(best.add(2, 3.0));
  EXPECT_FALSE(best.add(3, 3.0)) << "an equal loss is not lower";
  EXPECT_FALSE(best.is_out_of_patience());
  EXPECT_TRUE(best.add(4, 2.5));
  EXPECT_FALSE(best.add(5, 2.6));
  EXPECT_FALSE(best.is_out_of_patience());
  EXPECT_FALSE(best.add(6, NAN));
  EXPECT_TRUE(best.is_out_of_patience());
  EXPECT_EQ(best.step(), 4);
  EXPECT_EQ(best.text(), "loss 2.5 on \"eval\" at step 4");
  EXPECT_NE(best.end_text().find("2 evaluations in a row"), std::string::npos);
}

TEST(BestEvaluation, FindsTheFirstHighestScore) {
  BestEvaluation best = best_score(2);
  EXPECT_TRUE(best.add(1, 0.0)) << "the first one is the best so far";
  EXPECT_TRUE(best.add(2, 0.875));
  EXPECT_FALSE(best.add(3, 0.875));
  EXPECT_FALSE(best.is_out_of_patience());
  EXPECT_FALSE(best.add(4, 0.5));
  EXPECT_TRUE(best.is_out_of_patience());
  EXPECT_EQ(best.text(), "score 0.875 on \"eval\" at step 2");
}

TEST(BestEvaluation, WithoutPatienceARunNeverStopsEarly) {
  BestEvaluation best = best_loss(0);
  for (int64_t step = 1; step < 100; ++step) best.add(step, 1.0);
  EXPECT_FALSE(best.is_out_of_patience());
}

TEST(BestEvaluation, ContinuesFromItsSavedState) {
  BestEvaluation before = best_loss(2);
  before.add(1, 0.1);
  before.add(2, 0.2);
  BestEvaluation after = best_loss(2);
  after.restore(before.to_json(), "manifest.json");
  EXPECT_EQ(after.step(), 1);
  EXPECT_EQ(after.value(), 0.1);
  EXPECT_FALSE(after.add(3, 0.15));
  EXPECT_TRUE(after.is_out_of_patience());

  BestEvaluation none = best_loss(1);
  none.restore(best_loss(1).to_json(), "manifest.json");
  EXPECT_EQ(none.step(), -1);
  EXPECT_TRUE(none.add(1, INFINITY));
  BestEvaluation infinite = best_loss(1);
  infinite.restore(none.to_json(), "manifest.json");
  EXPECT_EQ(infinite.step(), 1);
  EXPECT_TRUE(infinite.add(2, 5.0));

  BestEvaluation score = best_score(2), rest = best_score(2);
  score.add(1, 0.5);
  score.add(2, 0.25);
  rest.restore(score.to_json(), "manifest.json");
  EXPECT_EQ(rest.value(), 0.5);
  EXPECT_FALSE(rest.add(3, 0.5));
  EXPECT_TRUE(rest.is_out_of_patience());
}

TEST(BestEvaluation, ReadsTheStateThatEarlierReleasesSaved) {
  const Json saved = {{"set", "eval"}, {"num_not_lower", 1}, {"step", 7}, {"loss", 2.5}};
  BestEvaluation best = best_loss(2);
  best.restore(saved, "manifest.json");
  EXPECT_EQ(best.text(), "loss 2.5 on \"eval\" at step 7");
  EXPECT_EQ(best.to_json(), saved);
}

TEST(BestEvaluation, ForgetsTheResultOfAnotherSetOrOfAnotherKind) {
  BestEvaluation before = best_loss(2, "a");
  before.add(1, 0.1);
  for (BestEvaluation after : {best_loss(2, "b"), best_score(2, "a")}) {
    log::reset_counted_warnings();
    after.restore(before.to_json(), "manifest.json");
    EXPECT_EQ(after.step(), -1);
    EXPECT_EQ(counted_warnings().size(), 1u);
  }
  log::reset_counted_warnings();
}

}  // namespace
}  // namespace chassis
