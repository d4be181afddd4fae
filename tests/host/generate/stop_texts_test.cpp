// Stop texts in every division of a text into pieces.
#include "host/generate/stop_texts.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

struct Shown {
  std::string text;
  bool found = false;
  bool operator==(const Shown&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Shown& shown) {
  return out << '"' << shown.text << '"' << (shown.found ? ", found" : "");
}

Shown show(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopTexts filter(stops);
  Shown shown;
  for (const std::string& piece : pieces) shown.text += filter.add(piece);
  shown.text += filter.finish();
  shown.found = filter.found();
  return shown;
}

// The same text in one piece, byte by byte, and cut at every place.
void expect(const std::vector<std::string>& stops, const std::string& text, const Shown& expected) {
  EXPECT_EQ(show(stops, {text}), expected);
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  EXPECT_EQ(show(stops, bytes), expected);
  for (size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(show(stops, {text.substr(0, cut), text.substr(cut)}), expected) << cut;
}

TEST(StopTexts, WithoutThemTheWholeTextIsShown) { expect({}, "one\ntwo", {"one\ntwo", false}); }

TEST(StopTexts, EndTheTextAndAreNotShown) {
  expect({"User:"}, "yes\nUser: and?", {"yes\n", true});
  expect({"\n\n", "User:"}, "yes\n\nUser:", {"yes", true});
  expect({"yes"}, "yes", {"", true});
}

TEST(StopTexts, ABeginningThatGoesOnDifferentlyIsShown) {
  expect({"User:"}, "Us Use UserUser", {"Us Use UserUser", false});
  expect({"aab"}, "aaaac", {"aaaac", false});
  expect({"aab"}, "aaaab", {"aa", true});
}

TEST(StopTexts, TheOneThatIsCompleteFirstCounts) {
  expect({"abcd", "bc"}, "xabcd", {"xa", true});
  expect({"bc", "abc"}, "xabcd", {"x", true});
}

TEST(StopTexts, HoldBackOnlyWhatMayBecomeOne) {
  StopTexts filter({"<end>"});
  EXPECT_EQ(filter.add("so <e"), "so ");
  EXPECT_EQ(filter.add("n"), "");
  EXPECT_EQ(filter.add("ough> <"), "<enough> ");
  EXPECT_FALSE(filter.found());
  EXPECT_EQ(filter.add("end> more"), "");
  EXPECT_TRUE(filter.found());
  EXPECT_EQ(filter.add("<end>"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopTexts, AnEmptyOneIsRefused) { EXPECT_THROW(StopTexts({"a", ""}), Error); }

}  // namespace
}  // namespace chassis
