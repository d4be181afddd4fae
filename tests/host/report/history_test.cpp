// Metrics in buckets equal those computed from their steps.
#include "host/report/history.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "host/report/sparkline.hpp"

namespace chassis {
namespace {

double loss(int64_t step) { return 5.0 / static_cast<double>(step) + (step % 7 == 0 ? 1.0 : 0.0); }

History history_of(int64_t num_steps) {
  History history;
  for (int64_t step = 1; step <= num_steps; ++step) {
    history.begin_step(step);
    history.set(0, "loss", loss(step));
  }
  return history;
}

TEST(History, KeepsEachStepOfAShortRun) {
  const History history = history_of(2048);
  EXPECT_EQ(history.width(), 1);
  EXPECT_EQ(history.num_buckets(), 2048u);
  const Series& series = *history.find("loss");
  for (int64_t step = 1; step <= 2048; ++step)
    ASSERT_EQ(series.mean[static_cast<size_t>(step - 1)], static_cast<float>(loss(step))) << step;
}

TEST(History, CombinesNeighboursOfALongRun) {
  const History history = history_of(100000);
  EXPECT_EQ(history.width(), 64);
  EXPECT_EQ(history.num_buckets(), 1563u);
  EXPECT_EQ(history.last_step(), 100000);
  const Series& series = *history.find("loss");
  for (const size_t bucket : {size_t{0}, size_t{1}, size_t{700}, size_t{1562}}) {
    double sum = 0.0, low = 1e9, high = -1e9;
    int num = 0;
    for (auto step = static_cast<int64_t>(bucket) * 64 + 1;
         step <= std::min<int64_t>(100000, (static_cast<int64_t>(bucket) + 1) * 64); ++step) {
      sum += loss(step), ++num;
      low = std::min(low, loss(step)), high = std::max(high, loss(step));
    }
    EXPECT_NEAR(series.mean[bucket], sum / num, 1e-5 * sum / num) << bucket;
    EXPECT_EQ(series.min[bucket], static_cast<float>(low)) << bucket;
    EXPECT_EQ(series.max[bucket], static_cast<float>(high)) << bucket;
    EXPECT_EQ(series.count[bucket], static_cast<uint32_t>(num)) << bucket;
  }
  EXPECT_EQ(series.lowest_step, 100000 - 100000 % 7 == 100000 ? 99999 : 100000);
  EXPECT_EQ(series.highest_step, 1);
}

TEST(History, CountsValuesThatAreNotFinite) {
  History history;
  for (int64_t step = 1; step <= 4; ++step) {
    history.begin_step(step);
    history.set(0, "loss",
                step == 2   ? std::numeric_limits<double>::quiet_NaN()
                : step == 3 ? std::numeric_limits<double>::infinity()
                            : 2.0);
  }
  const Series& series = *history.find("loss");
  EXPECT_EQ(series.num_not_finite, 2u);
  EXPECT_TRUE(std::isnan(series.mean[1]));
  EXPECT_EQ(history.recent_mean("loss", 4), 2.0);
  EXPECT_EQ(series.last, 2.0);
}

TEST(History, TakesNamesThatComeAndGo) {
  History history;
  history.begin_step(1);
  history.set(0, "a", 1.0);
  history.begin_step(5);
  history.set(0, "b", 2.0);
  history.set(1, "a", 3.0);
  EXPECT_EQ(history.series().size(), 2u);
  EXPECT_EQ(history.find("a")->mean.size(), 5u);
  EXPECT_TRUE(std::isnan(history.find("b")->mean[0]));
  EXPECT_EQ(history.recent_mean("a", 2), 3.0);
  history.begin_step(9);
  EXPECT_TRUE(std::isnan(history.recent_mean("a", 2)));
  EXPECT_EQ(history.find("c"), nullptr);
  EXPECT_FALSE(history.begin_step(0));
  history.set(0, "a", 9.0);
  EXPECT_EQ(history.find("a")->last, 3.0);
}

TEST(History, BoundsTheNumberOfNames) {
  History history;
  history.begin_step(1);
  for (size_t i = 0; i < History::kMaxSeries + 10; ++i) history.set(i, "metric" + std::to_string(i), 1.0);
  EXPECT_EQ(history.series().size(), History::kMaxSeries);
  EXPECT_EQ(history.num_dropped(), 10u);
}

TEST(Sparkline, HasTheHeightsOfTheValues) {
  const float values[] = {0.0f, 1.0f, 2.0f, 7.0f};
  EXPECT_EQ(sparkline(values, 10), "▁▂▃█");
  EXPECT_EQ(sparkline(values, 10, false), "0127");
  EXPECT_EQ(sparkline(values, 2), "▁█");
  const float gap[] = {1.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  EXPECT_EQ(sparkline(gap, 10), "▁ ▁");
  EXPECT_EQ(sparkline({}, 10), "");
}

}  // namespace
}  // namespace chassis
