#include "host/base/error.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace chassis {
namespace {

TEST(Error, ShowsPositionMessageFactsCauseAndHintInThisOrder) {
  Error e(ExitCode::kConfig, SourcePosition{"a.toml", 3, 7}, "no such key");
  e.hint("remove it").with("rank", "3").with("key", "x").caused_by(std::runtime_error("deeper"));
  EXPECT_STREQ(e.what(), "a.toml:3:7: no such key (rank: 3, key: x)\ncaused by: deeper\nhint: remove it");
  EXPECT_EQ(e.code(), ExitCode::kConfig);
}

TEST(Error, IsFromAnotherRankIfItsCauseIs) {
  const Error remote = Error(ExitCode::kNumeric, "rank 2: loss is nan").from_another_rank();
  EXPECT_TRUE(storage_error("not saved").caused_by(remote).is_from_another_rank());
  EXPECT_FALSE(storage_error("not saved").caused_by(config_error("odd")).is_from_another_rank());
}

TEST(Error, LeavesOutUnknownPartsOfAPosition) {
  EXPECT_EQ((SourcePosition{"a", 0, 0}.text()), "a");
  EXPECT_EQ((SourcePosition{"a", 2, 0}.text()), "a:2");
  EXPECT_EQ(SourcePosition{}.text(), "");
  EXPECT_STREQ(storage_error("full").what(), "full");
}

TEST(Error, ABrokenInvariantNamesTheExpression) {
  try {
    CHASSIS_CHECK(1 == 2, "arithmetic works");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kInternal);
    EXPECT_NE(e.message().find("arithmetic works [1 == 2]"), std::string::npos);
    EXPECT_GT(e.where().line, 0);
  }
}

}  // namespace
}  // namespace chassis
