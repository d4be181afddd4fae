// Differences between the texts of ranks.
#include "host/launch/text_difference.hpp"

#include <gtest/gtest.h>

namespace chassis {
namespace {

TEST(TextDifference, ComparesKeyByKey) {
  const std::string common = "optimizer.lr = 0.1\nplugins.path = null\n";
  EXPECT_EQ(text_difference("a = 1\n" + common, 1, "a = 2\n" + common, 0), "'a = 1' on rank 1, 'a = 2' on rank 0");
  // A key that only one rank has shifts the lines after it.
  EXPECT_EQ(text_difference("attention.plugin = \"naive\"\n" + common, 1, common, 0),
            "'attention.plugin = \"naive\"' on rank 1, no 'attention.plugin' on rank 0");
  EXPECT_EQ(text_difference(common, 3, "attention.plugin = \"naive\"\n" + common, 0),
            "no 'attention.plugin' on rank 3, 'attention.plugin = \"naive\"' on rank 0");
  EXPECT_EQ(text_difference("a = 1\nb = 2\n", 1, "b = 3\nc = 4\n", 0),
            "'a = 1' on rank 1, no 'a' on rank 0; and 2 more");
}

TEST(TextDifference, TakesLinesWithoutAKeyAndRepeatedKeys) {
  EXPECT_EQ(text_difference("4711", 1, "4712", 0), "'4711' on rank 1, '4712' on rank 0");
  EXPECT_EQ(text_difference("adamw 1 x\nadamw 2 y\n", 1, "adamw 1 x\nadamw 2 z\n", 0),
            "'adamw 2 y' on rank 1, 'adamw 2 z' on rank 0");
  EXPECT_EQ(text_difference("a 1\nb 1\n", 1, "b 1\na 1\n", 0), "the order of lines on rank 1 and rank 0");
}

}  // namespace
}  // namespace chassis
