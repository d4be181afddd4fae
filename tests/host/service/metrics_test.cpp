// The store of metrics.
#include "host/service/metrics.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

TEST(MetricsStore, KeepsTheLastValueAndAddsUp) {
  MetricsStore store;
  store.set("a", 1);
  store.add("b", 2);
  store.set("a", 3);
  store.add("b", 4);
  EXPECT_EQ(store.take(), (MetricsStore::Values{{"a", 3}, {"b", 6}}));
  EXPECT_TRUE(store.take().empty());
}

}  // namespace
}  // namespace chassis
