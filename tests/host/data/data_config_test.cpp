#include "host/data/data_config.hpp"

#include <gtest/gtest.h>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

TEST(DataConfig, RefusesUnknownNames) {
  EXPECT_EQ(packing_from_text("concat_split"), Packing::kConcatSplit);
  EXPECT_EQ(to_text(Overflow::kTruncate), "truncate");
  EXPECT_TRUE(contains(error_of([] { packing_from_text("greedy"); }), "\"best_fit\", \"concat_split\", \"none\""));
  EXPECT_TRUE(contains(error_of([] { data_format_from_text("csv"); }), "\"text\", \"alpaca\""));
  EXPECT_TRUE(contains(error_of([] { document_split_from_text("page"); }), "\"paragraph\""));
  EXPECT_TRUE(contains(error_of([] { overflow_from_text("wrap"); }), "\"drop\""));
}

}  // namespace
}  // namespace chassis
