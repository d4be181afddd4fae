#include "host/base/printable.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

TEST(Printable, LeavesTextAloneInAnyScript) { EXPECT_EQ(printable("naïve 模型 × 🙂"), "naïve 模型 × 🙂"); }

TEST(Printable, EscapesControlsOfTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\nc\td\x7f\r"), "a\\x1b[2Jb\\nc\\td\\x7f\\r");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, EscapesControlsOfUnicode) {
  EXPECT_EQ(printable("\u009b"), "\\x9b");
  EXPECT_EQ(printable("\u202egpj.exe\u2066\u2028"), "\\u202egpj.exe\\u2066\\u2028");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80"), "\\xc0\\xaf\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
}

TEST(Printable, CutsLongTextBetweenCharactersAndSaysItsLength) {
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(200, 'x') + "… (300 bytes)");
  EXPECT_EQ(printable("ééé", 3), "éé… (6 bytes)");
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(200, 'x'));
}

TEST(Printable, LinesKeepTheirBreaksAndTheirLength) {
  EXPECT_EQ(printable_lines("a\n\n\tb\x1b[31m\n"), "a\n\n\tb\\x1b[31m\n");
  EXPECT_EQ(printable_lines(std::string(100000, 'x')), std::string(100000, 'x'));
}

TEST(Printable, RecognisesUtf8) {
  EXPECT_TRUE(is_utf8("naïve 模型 🙂"));
  for (const char* text : {"\xff", "a\xc3", "\xed\xa0\x80"}) EXPECT_FALSE(is_utf8(text));
}

TEST(Printable, AMessageKeepsItsListsButNoOtherLineBreak) {
  EXPECT_EQ(printable_message("two:\n  a\n  b\ncaused by: c\nhint: d"), "two:\n  a\n  b\ncaused by: c\nhint: d");
  EXPECT_EQ(printable_message("key 'x\nerror: all is lost'"), "key 'x\\nerror: all is lost'");
}

TEST(Printable, AnErrorIsPrintableWhateverItNames) {
  Error error(ExitCode::kConfig, SourcePosition{"a\nb.toml", 1, 2}, "unknown key 'x\nerror: \x1b[31m'");
  error.with("tensor", "w\n0").hint("rename it");
  EXPECT_STREQ(error.what(), "a\\nb.toml:1:2: unknown key 'x\\nerror: \\x1b[31m' (tensor: w\\n0)\nhint: rename it");
}

TEST(PrintableMessage, LeavesOutTheMiddleOfAVeryLongWord) {
  const std::string long_path = "'/" + std::string(900, 'a') + "'";
  EXPECT_EQ(printable_message("no file " + long_path), "no file " + long_path);
  std::string name = "'";
  for (int i = 0; i < 5000; ++i) name += "é";
  const std::string text = printable_message("unknown plugin " + name + "' of kind 'ops'");
  EXPECT_LT(text.size(), 500u);
  EXPECT_TRUE(is_utf8(text)) << text;
  EXPECT_NE(text.find("é… (10002 bytes) …é"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("é' of kind 'ops'")) << text;
}

TEST(PrintablePieces, WaitsForTheRestOfACharacter) {
  PrintablePieces pieces;
  EXPECT_EQ(pieces.add("a\xc3"), "a");
  EXPECT_EQ(pieces.add("\xa9\n\xe2\x82"), "é\n");
  EXPECT_EQ(pieces.add("\xac\x1b[31m"), "€\\x1b[31m");
  EXPECT_EQ(pieces.add("\xc2\x9b\xe2\x80\xae"), "\\x9b\\u202e");
  EXPECT_EQ(pieces.add("\xffz\xf0\x9f"), "\\xffz");
  EXPECT_EQ(pieces.finish(), "\\xf0\\x9f");
  EXPECT_EQ(pieces.finish(), "");
}

TEST(HtmlText, CannotOpenATagOrEndAnAttribute) {
  EXPECT_EQ(html_text("<a href=\"x\">&</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;");
}

}  // namespace
}  // namespace chassis
