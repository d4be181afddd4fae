#include "host/train/best_loss.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "host/base/log.hpp"

namespace chassis {
namespace {

TEST(BestLoss, FindsTheLowestLossAndCountsTheOthers) {
  BestLoss best("eval", 2);
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

TEST(BestLoss, WithoutPatienceARunNeverStopsEarly) {
  BestLoss best("eval", 0);
  for (int64_t step = 1; step < 100; ++step) best.add(step, 1.0);
  EXPECT_FALSE(best.is_out_of_patience());
}

TEST(BestLoss, ContinuesFromItsSavedState) {
  BestLoss before("eval", 2);
  before.add(1, 0.1);
  before.add(2, 0.2);
  BestLoss after("eval", 2);
  after.restore(before.to_json(), "manifest.json");
  EXPECT_EQ(after.step(), 1);
  EXPECT_EQ(after.loss(), 0.1);
  EXPECT_FALSE(after.add(3, 0.15));
  EXPECT_TRUE(after.is_out_of_patience());

  BestLoss none("eval", 1);
  none.restore(BestLoss("eval", 1).to_json(), "manifest.json");
  EXPECT_EQ(none.step(), -1);
  EXPECT_TRUE(none.add(1, INFINITY));
  BestLoss infinite("eval", 1);
  infinite.restore(none.to_json(), "manifest.json");
  EXPECT_EQ(infinite.step(), 1);
  EXPECT_TRUE(infinite.add(2, 5.0));
}

TEST(BestLoss, ForgetsTheLossOfAnotherSet) {
  log::reset_counted_warnings();
  BestLoss before("a", 2), after("b", 2);
  before.add(1, 0.1);
  after.restore(before.to_json(), "manifest.json");
  EXPECT_EQ(after.step(), -1);
  EXPECT_EQ(counted_warnings().size(), 1u);
  log::reset_counted_warnings();
}

}  // namespace
}  // namespace chassis
