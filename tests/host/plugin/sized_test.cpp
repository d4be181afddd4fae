// Structs of a plugin with another ABI minor: members that the writer knew are read, the rest is zero, and a struct
// shorter than its first version is refused with both sizes.
#include "host/plugin/sized.hpp"

#include <gtest/gtest.h>

#include "tests/host/plugin/plugin_files.hpp"

namespace chassis {

// A struct of which a later minor has appended a member.
struct Grown {
  uint32_t struct_size, first;
  uint64_t appended;
};
template <>
inline constexpr uint32_t kFirstSize<Grown> = 8;

namespace {

// The struct in a later minor.
struct LaterRule {
  chassis_shard_rule_t rule;
  uint64_t appended[2];
};

TEST(Sized, DoesNotReadMembersOfALaterMinor) {
  LaterRule later{};
  later.rule.struct_size = sizeof later;
  later.rule.parameter = 7;
  later.appended[0] = later.appended[1] = ~uint64_t{0};
  const chassis_shard_rule_t read = read_struct(&later.rule, "the rule");
  EXPECT_EQ(read.struct_size, sizeof(chassis_shard_rule_t));
  EXPECT_EQ(read.parameter, 7u);
}

TEST(Sized, MembersUnknownToAnEarlierMinorAreZero) {
  Grown grown{8, 7, ~uint64_t{0}};
  const Grown read = read_struct(&grown, "the struct");
  EXPECT_EQ(read.struct_size, 8u);
  EXPECT_EQ(read.first, 7u);
  EXPECT_EQ(read.appended, 0u);
  grown.struct_size = sizeof grown;
  EXPECT_EQ(read_struct(&grown, "the struct").appended, ~uint64_t{0});
}

TEST(Sized, RefusesAStructShorterThanTheFirstVersion) {
  chassis_shard_rule_t rule{};
  rule.struct_size = 8;
  const std::string least = std::to_string(CHASSIS_SHARD_RULE_V1_SIZE);
  EXPECT_TEXT(thrown_by([&] { read_struct(&rule, "the rule of 'w'"); }).text,
              "the rule of 'w' has 8 bytes, expected at least " + least);
  EXPECT_TEXT(thrown_by([] { read_struct<chassis_shard_rule_t>(nullptr, "the rule"); }).text,
              "the rule has 0 bytes, expected at least " + least);
}

}  // namespace
}  // namespace chassis
