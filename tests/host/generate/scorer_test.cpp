// Scores of answers, and programs that judge them: good ones, slow ones, and those that crash or cannot start.
#include "host/generate/scorer.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "host/base/log.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

Json row_with(const Json& expected) { return {{"prompt", "p"}, {"expected", expected}}; }

template <class Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    return error.what();
  }
  return "accepted";
}

std::string refused_row(const ScoreRule& rule, const Json& row) {
  return refusal([&] { Scorer(rule).check(row); });
}

TEST(Scorer, AnExactAnswerIsOneOfTheTextsApartFromWhiteSpaceAtItsEnds) {
  const Scorer scorer({.score = AnswerScore::kExact});
  EXPECT_TRUE(scorer.passes(row_with("42"), " 42\n"));
  EXPECT_TRUE(scorer.passes(row_with("two  words\n"), "two  words"));
  EXPECT_FALSE(scorer.passes(row_with("two  words"), "two words"));
  EXPECT_FALSE(scorer.passes(row_with("42"), "42."));
  EXPECT_TRUE(scorer.passes(row_with({"42", "forty-two"}), "forty-two"));
  EXPECT_FALSE(scorer.passes(row_with({"42", "forty-two"}), ""));
  EXPECT_TRUE(scorer.passes(row_with(""), " \t\n"));
}

TEST(Scorer, AnAnswerMayContainTheText) {
  const Scorer scorer({.score = AnswerScore::kContains});
  EXPECT_TRUE(scorer.passes(row_with({"x", "42"}), "it is 42, I think"));
  EXPECT_FALSE(scorer.passes(row_with("Forty"), "forty"));
}

TEST(Scorer, AnExpressionIsFoundOrItsGroupIsATextThatIsExpected) {
  const Scorer found({.score = AnswerScore::kRegex, .pattern = "^[0-9]+$"});
  EXPECT_TRUE(found.passes({{"prompt", "p"}}, "123"));
  EXPECT_FALSE(found.passes({{"prompt", "p"}}, "123 "));
  const Scorer group({.score = AnswerScore::kRegex, .pattern = "answer: (.*)"});
  EXPECT_TRUE(group.passes(row_with({"41", "42"}), "so the answer:  42 \nbye"));
  EXPECT_FALSE(group.passes(row_with("42"), "the answer: 421"));
  EXPECT_FALSE(group.passes(row_with("42"), "42"));
  EXPECT_HAS(refusal([] { Scorer({.score = AnswerScore::kRegex, .pattern = "a("}); }), "(at character 3)");
}

TEST(Scorer, ASearchThatTakesTooLongHasNotPassed) {
  log::reset_counted_warnings();
  const Scorer scorer({.score = AnswerScore::kRegex, .pattern = "^(?:a+)+$"});
  EXPECT_FALSE(scorer.passes({{"prompt", "p"}}, std::string(60, 'a') + "!"));
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].first, "searches in answers given up");
  log::reset_counted_warnings();
}

TEST(Scorer, RowsWithoutAnExpectedTextAreRefused) {
  const Json bare = {{"prompt", "p"}};
  const ScoreRule exact, contains{.score = AnswerScore::kContains}, word{.score = AnswerScore::kRegex, .pattern = "x"},
      group{.score = AnswerScore::kRegex, .pattern = "(x)"},
      command{.score = AnswerScore::kCommand, .command = {"true"}};
  for (const ScoreRule& rule : {exact, contains, group}) EXPECT_HAS(refused_row(rule, bare), "has no 'expected'");
  for (const ScoreRule& rule : {word, command}) EXPECT_EQ(refused_row(rule, bare), "accepted");
  EXPECT_HAS(refused_row(exact, row_with(42)), "'expected' must be a text, not number");
  EXPECT_HAS(refused_row(exact, row_with(Json::array())), "'expected' is an empty list");
  EXPECT_HAS(refused_row(exact, row_with({"42", 43})), "'expected' has number in place of a text");
  EXPECT_HAS(refused_row(contains, row_with({"a", ""})), "which every answer contains");
}

class JudgeTest : public testing::Test {
 protected:
  JudgeTest() { log::reset_counted_warnings(); }
  ~JudgeTest() override { log::reset_counted_warnings(); }

  static bool accepts(const std::string& script, const std::string& input = "", std::chrono::milliseconds limit = 20s) {
    return Judge({"/bin/sh", "-c", script}, limit).accepts(input);
  }
  static std::string warning() { return counted_warnings().empty() ? "" : counted_warnings().back().first; }
};

TEST_F(JudgeTest, ReadsTheRowWithItsAnswerAndItsExitCodeDecides) {
  const ScoreRule rule{.score = AnswerScore::kCommand,
                       .command = {"grep", "-qxF", R"({"prompt":"p","expected":"e","answer":"a\nb"})"}};
  EXPECT_TRUE(Scorer(rule).passes(row_with("e"), "a\nb"));
  EXPECT_FALSE(Scorer(rule).passes(row_with("e"), "a b"));
  EXPECT_FALSE(accepts("exit 3"));
  EXPECT_EQ(warning(), "");
}

TEST_F(JudgeTest, NeedNotReadItsInputAndMayWriteMuch) {
  EXPECT_TRUE(accepts("exit 0", std::string(1 << 20, 'x')));
  EXPECT_TRUE(accepts("head -c 1000000 /dev/zero"));
}

TEST_F(JudgeTest, ACrashIsNoPassAndIsCounted) {
  EXPECT_FALSE(accepts("kill -SEGV $$"));
  EXPECT_EQ(warning(), "answers whose judge crashed");
}

TEST_F(JudgeTest, IsKilledWithItsGroupAfterTheTimeout) {
  const test::ScratchDirectory folder;
  const std::string file = folder / "child";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(accepts("sleep 60 & echo $! > " + file + "; sleep 60", "", 300ms));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  EXPECT_EQ(warning(), "answers that were not judged in time");
  const std::string child = "/proc/" + std::to_string(std::atoi(test::text_of_file(file).c_str())) + "/stat";
  const auto is_running = [&] {
    const std::string text = test::text_of_file(child);
    return !text.empty() && text.find(") Z") == std::string::npos;
  };
  for (int i = 0; i < 500 && is_running(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(is_running());
}

TEST_F(JudgeTest, AProgramThatDoesNotExistOrCannotStartIsAnError) {
  EXPECT_HAS(refusal([] { Judge({"no-such-judge"}, 1s); }), "there is no program 'no-such-judge' in PATH");
  EXPECT_HAS(refusal([] { Judge({"./no/judge"}, 1s); }), "'./no/judge' is not an executable file");
  const test::ScratchDirectory folder;
  const std::string script = folder / "judge";
  test::write_text(script, "#!/no/such/interpreter\n");
  EXPECT_HAS(refusal([&] { Judge({script}, 1s); }), "is not an executable file");
  ASSERT_EQ(chmod(script.c_str(), 0755), 0);
  EXPECT_HAS(refusal([&] { Judge({script}, 1s).accepts(""); }), "cannot be started: No such file or directory");
}

}  // namespace
}  // namespace chassis
