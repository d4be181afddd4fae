// Rows of prompts, good and bad, and files of answers that a run was killed in.
#include "host/generate/prompts_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

class PromptsFile : public testing::Test {
 protected:
  std::vector<PromptRow> read(const std::string& text) {
    test::write_text(prompts_, text);
    return read_prompts(prompts_);
  }
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
  std::string refused(const std::string& text) {
    return refusal([&] { read(text); });
  }

  test::ScratchDirectory directory_;
  const Json made_with_ = {{"weights", "a"}, {"generate.temperature", 0.5}};
  const std::string prompts_ = directory_ / "prompts.jsonl", answers_ = directory_ / "answers.jsonl";
};

const char* kThree = R"({"id": 1, "prompt": "one"}

{"messages": [{"role": "user", "content": "two"}], "id": 2}
{"prompt": "three"})";

TEST_F(PromptsFile, RowsAreTextsOrConversations) {
  const std::vector<PromptRow> rows = read(kThree);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].prompt, "one");
  EXPECT_FALSE(rows[0].chat);
  ASSERT_TRUE(rows[1].chat);
  EXPECT_EQ(rows[1].chat->messages.at(0).text(), "two");
  EXPECT_EQ(rows[1].where.line, 3);
  EXPECT_EQ(rows[2].prompt, "three");
}

TEST_F(PromptsFile, BadRowsAreErrorsAtTheirLine) {
  EXPECT_HAS(refused("{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n"),
             "prompts.jsonl:2: has neither 'prompt' nor 'messages'");
  EXPECT_HAS(refused("{\"prompt\": \"a\", \"messages\": []}\n"), "prompts.jsonl:1: has both 'prompt' and 'messages'");
  EXPECT_HAS(refused("{\"prompt\": \"a\"}\nnot json\n"), "prompts.jsonl:2:");
  EXPECT_HAS(refused("[1]\n"), "prompts.jsonl:1: expected an object, found array");
  EXPECT_HAS(refused("{\"prompt\": 3}\n"), "prompts.jsonl:1: 'prompt' must be a string, not number");
  EXPECT_EQ(refused("{\"prompt\": 3}\n").find("prompts.jsonl:1"),
            refused("{\"prompt\": 3}\n").rfind("prompts.jsonl:1"));
  EXPECT_HAS(refused("{\"messages\": []}\n"), "prompts.jsonl:1");
  EXPECT_HAS(refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
             "prompts.jsonl:1: the last message is the assistant's");
  EXPECT_HAS(refused("{\"prompt\": \"a\", \"answer\": \"b\"}\n"), "has a key 'answer'");
  EXPECT_HAS(refused("\n \n"), "has no prompt");
}

TEST_F(PromptsFile, AnswersKeepTheKeysOfTheirRow) {
  const auto rows = read(kThree);
  AnswersFile answers(answers_, rows, made_with_);
  answers.append(rows[0], {.text = "ein\ns", .finish_reason = "stop", .num_prompt_tokens = 3, .num_tokens = 4});
  EXPECT_EQ(test::text_of_file(answers_),
            "{\"id\":1,\"prompt\":\"one\",\"answer\":\"ein\\ns\",\"finish_reason\":\"stop\",\"prompt_tokens\":3,"
            "\"answer_tokens\":4}\n");
}

TEST_F(PromptsFile, ASecondRunContinuesBehindTheCompleteRows) {
  const auto rows = read(kThree);
  {
    AnswersFile answers(answers_, rows, made_with_);
    EXPECT_EQ(answers.num_answered(), 0u);
    answers.append(rows[0], {.text = "A", .finish_reason = "stop"});
    answers.append(rows[1], {.text = "B", .finish_reason = "length"});
  }
  const std::string two = test::text_of_file(answers_);
  test::write_text(answers_, two + "{\"prompt\":\"thr");
  AnswersFile answers(answers_, rows, made_with_);
  EXPECT_EQ(answers.num_answered(), 2u);
  EXPECT_EQ(test::text_of_file(answers_), two);
  answers.append(rows[2], {.text = "C", .finish_reason = "stop"});
  EXPECT_TRUE(test::text_of_file(answers_).starts_with(two + "{\"prompt\":\"three\",\"answer\":\"C\""));
}

TEST_F(PromptsFile, AnswersMadeWithOtherWeightsOrSettingsAreKeptAndRefused) {
  const auto rows = read(kThree);
  AnswersFile(answers_, rows, made_with_).append(rows[0], {.text = "A", .finish_reason = "stop"});
  const std::string kept = test::text_of_file(answers_);
  const Json other = {{"weights", "b"}, {"data.template", "chatml"}, {"generate.temperature", 0.5}};
  const std::string message = refusal([&] { AnswersFile(answers_, rows, other); });
  EXPECT_HAS(message, "answers.jsonl: its 1 answers were made with other weights or settings:");
  EXPECT_HAS(message, "weights: \"a\" then, \"b\" now");
  EXPECT_HAS(message, "data.template: not set then, \"chatml\" now");
  EXPECT_EQ(message.find("temperature"), std::string::npos) << message;
  EXPECT_EQ(test::text_of_file(answers_), kept);
  EXPECT_EQ(AnswersFile(answers_, rows, made_with_).num_answered(), 1u);

  std::filesystem::remove(answers_ + ".made_with.json");
  EXPECT_HAS(refusal([&] { AnswersFile(answers_, rows, made_with_); }), "which says what they were made with");
  std::filesystem::remove(answers_);
  EXPECT_EQ(AnswersFile(answers_, rows, other).num_answered(), 0u);
}

TEST_F(PromptsFile, AnswersToOtherPromptsAreKeptAndRefused) {
  const auto rows = read(kThree);
  AnswersFile(answers_, rows, made_with_).append(rows[1], {.text = "B", .finish_reason = "stop"});
  const auto refused_with = [&](const std::string& text) {
    test::write_text(answers_, text);
    const std::string message = refusal([&] { AnswersFile(answers_, rows, made_with_); });
    EXPECT_EQ(test::text_of_file(answers_), text);
    return message;
  };
  const std::string other = test::text_of_file(answers_);
  EXPECT_HAS(refused_with(other), "answers.jsonl:1: is not the answer to");
  EXPECT_HAS(refused_with("my notes\n"), "answers.jsonl:1:");
  EXPECT_HAS(refused_with("my notes"), "answers.jsonl:1: is not the answer to");
  EXPECT_HAS(refused_with("{\"id\":1,\"prompt\":\"one\"}"), "answers.jsonl:1: is not the answer to");
  EXPECT_HAS(refused_with("{\"prompt\":\"one\"}\n"), "has no 'answer'");
}

TEST_F(PromptsFile, AFileWithoutItsRecordIsKept) {
  const auto rows = read(kThree);
  for (const std::string text : {"my notes", "my notes\n", "{\"id\":1,\"prompt\":\"one\""}) {
    test::write_text(answers_, text);
    EXPECT_HAS(refusal([&] { AnswersFile(answers_, rows, made_with_); }),
               "answers.jsonl' exists, and its answers cannot be");
    EXPECT_EQ(test::text_of_file(answers_), text);
    EXPECT_FALSE(std::filesystem::exists(answers_ + ".made_with.json"));
  }
  test::write_text(answers_, "");
  EXPECT_EQ(AnswersFile(answers_, rows, made_with_).num_answered(), 0u);
  EXPECT_EQ(AnswersFile(answers_, rows, made_with_).num_answered(), 0u);
}

TEST_F(PromptsFile, AForeignRecordIsKept) {
  const auto rows = read(kThree);
  const std::string record = answers_ + ".made_with.json";
  for (const std::string text : {"PRECIOUS\nX\n", "{\"a\":1}", "[1]", "{\"answers\":\"other.jsonl\"}\n"}) {
    test::write_text(record, text);
    EXPECT_HAS(refusal([&] { AnswersFile(answers_, rows, made_with_); }), "answers.jsonl.made_with.json:1:");
    EXPECT_EQ(test::text_of_file(record), text);
    EXPECT_FALSE(std::filesystem::exists(answers_));
  }
}

TEST_F(PromptsFile, AnswersDoNotGoToTheFileOfThePrompts) {
  read(kThree);
  const std::string link = directory_ / "link.jsonl", hard = directory_ / "hard.jsonl";
  std::filesystem::create_symlink(prompts_, link);
  std::filesystem::create_hard_link(prompts_, hard);
  for (const std::string& out : {prompts_, link, hard, directory_ / "./prompts.jsonl"})
    EXPECT_HAS(refusal([&] { require_other_file(prompts_, out); }), "is the file of the prompts");
  require_other_file(prompts_, answers_);
}

}  // namespace
}  // namespace chassis
