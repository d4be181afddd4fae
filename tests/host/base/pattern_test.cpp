#include "host/base/pattern.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"

namespace chassis {
namespace {

std::string refusal(const std::string& text, const std::string& subject = "") {
  try {
    const bool found = Pattern(text).found_in(subject);
    return found ? "found" : "not found";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
}

TEST(Pattern, FindsAPartOfTheSubject) {
  const Pattern pattern("layers\\.[0-9]+\\.mlp");
  EXPECT_TRUE(pattern.found_in("model.layers.12.mlp.up_proj.weight"));
  EXPECT_FALSE(pattern.found_in("model.layers.x.mlp.up_proj.weight"));
  EXPECT_TRUE(Pattern("").found_in("anything"));
  EXPECT_FALSE(Pattern("^norm$").found_in("norm\n")) << "$ matches only at the end";
}

TEST(Pattern, GivesTheTextOfItsFirstGroup) {
  EXPECT_EQ(Pattern("a(?:b|c)").num_groups(), 0u);
  const Pattern answer("answer: (.*)");
  EXPECT_EQ(answer.num_groups(), 1u);
  EXPECT_EQ(answer.first_group_in("the answer: 42\nanswer: 43"), "42");
  EXPECT_EQ(answer.first_group_in("no answer"), std::nullopt);
  EXPECT_EQ(answer.first_group_in("answer: "), "");
  EXPECT_EQ(Pattern("x|(y)").first_group_in("x"), std::nullopt) << "the group took no part";
}

TEST(Pattern, LooksAheadAndBehindAsPeftPatternsDo) {
  const Pattern pattern("^(?!.*vision_tower).*(?<=self_attn\\.)(q|v)_proj.*$");
  EXPECT_TRUE(pattern.found_in("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(pattern.found_in("vision_tower.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(pattern.found_in("model.layers.0.self_attn.k_proj.weight"));
}

TEST(Pattern, SaysWhatIsWrongAndAtWhichCharacter) {
  EXPECT_EQ(refusal("layers.(0|1"),
            "\"layers.(0|1\" is not a regular expression: missing closing parenthesis (at character 12)");
  EXPECT_EQ(refusal("[z-a]"), "\"[z-a]\" is not a regular expression: range out of order in character class (at "
                              "character 4)");
}

TEST(Pattern, RefusesPatternsThatAreTooDeepOrTooLong) {
  const std::string deep = std::string(5000, '(') + std::string(5000, ')');
  EXPECT_NE(refusal(deep).find("parentheses are too deeply nested"), std::string::npos) << refusal(deep);
  const std::string longer(20000, '(');
  EXPECT_NE(refusal(longer).find("is not a regular expression: "), std::string::npos) << refusal(longer);
  EXPECT_LT(refusal(longer).size(), 1000u);
}

TEST(Pattern, GivesUpASearchThatWouldTakeForever) {
  const std::string text = refusal("^(a+)+$", std::string(60, 'a') + "!");
  EXPECT_NE(text.find("the search for \"^(a+)+$\" in 'aaaa"), std::string::npos) << text;
  EXPECT_NE(text.find("match limit exceeded"), std::string::npos) << text;
}

TEST(Pattern, SearchesNamesThatAreNotUtf8) {
  EXPECT_TRUE(Pattern("weight").found_in("\xff.weight"));
  EXPECT_NE(refusal("\xff").find("\"\\xff\" is not a regular expression: UTF-8 error"), std::string::npos)
      << refusal("\xff");
}

}  // namespace
}  // namespace chassis
