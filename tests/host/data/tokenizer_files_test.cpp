#include "host/data/tokenizer_files.hpp"

#include <gtest/gtest.h>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

TEST(TokenizerFiles, AreFoundInAModelDirectory) {
  TempFolder folder;
  folder.write("config.json", "{}");
  EXPECT_TRUE(tokenizer_files(folder.path()).empty());
  folder.write("tokenizer.json", "{}");
  folder.write("merges.txt", "");
  folder.write("tokens.txt", "");
  EXPECT_EQ(tokenizer_files(folder.path()), (std::vector<std::string>{"merges.txt", "tokenizer.json"}));
  EXPECT_TRUE(tokenizer_files(folder.path() + "/nowhere").empty());
}

TEST(TokenizerFiles, PathsAreComparedAsTheyAreWritten) {
  for (const char* inside : {"models/x", "models/x/", "./models/x/tokenizer.json", "models/y/../x/a/b"})
    for (const char* directory : {"models/x", "models/x/", "./models/x"})
      EXPECT_TRUE(lies_in(inside, directory)) << inside << " " << directory;
  for (const char* outside : {"models", "models/xy", "models/x/../y", "x", ""})
    EXPECT_FALSE(lies_in(outside, "models/x")) << outside;
}

}  // namespace
}  // namespace chassis
