// The real program: `chassis tokenizer`.
#include <filesystem>

#include "tests/support/program_copy.hpp"
#include "tests/support/program_run.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using Words = std::vector<std::string>;

class TokenizerVerb : public testing::Test {
 protected:
  TokenizerVerb() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "the words of a small text\n";
    test::write_text(scratch_ / "a.txt", text);
    test::write_text(scratch_ / "b.jsonl", "{\"text\": \"the other words\"}\n\n{\"text\": \"other\"}\n");
    copy_.add("words", CHASSIS_TEST_STUB_DIR);
  }
  std::string run(Words words, int exit_code = 0) {
    words.insert(words.begin(), {copy_.path(), "tokenizer"});
    const Outcome outcome = test::run_process(words, scratch_.path());
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }
  std::string shell(const std::string& line, int exit_code = 0) {
    const Outcome outcome = test::run_process({"/bin/sh", "-c", line}, scratch_.path(), {{"CHASSIS", copy_.path()}});
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    return outcome.output;
  }

  test::ScratchDirectory scratch_;
  test::ProgramCopy copy_{scratch_ / "own", {"bytes"}};
};

TEST_F(TokenizerVerb, TrainsAVocabularyThatEncodesAndDecodes) {
  const std::string said = run({"train", "--vocab", "300", "a.txt", "b.jsonl", "--out", "tok"});
  EXPECT_HAS(said, "tok: 267 ids from 7.64 KiB of text in ");
  EXPECT_HAS(said, "(words.txt)\n");
  EXPECT_HAS(said, "the vocabulary has 267 of 300 ids: the text has no more pairs that occur 2 times");
  EXPECT_EQ(test::text_of_file(scratch_ / "tok/words.txt"), "the\nwords\nof\nsmall\ntext\nother\n");
  EXPECT_EQ(shell("printf 'the words\\n\\n</s>a\\r\\nof' | \"$CHASSIS\" tokenizer encode tok"),
            "261 32 262\n\n257 97\n263\n");
  EXPECT_EQ(shell("printf '</s>' | \"$CHASSIS\" tokenizer encode tok --plain"), "60 47 115 62\n");
  EXPECT_EQ(shell("printf 'the words' | \"$CHASSIS\" tokenizer encode tok --offsets"), "261:0-3 32:3-4 262:4-9\n");
  EXPECT_EQ(shell("printf '261 32 262\\n\\n[257, 97]\\n' | \"$CHASSIS\" tokenizer decode tok"), "the words\n\na\n");
  EXPECT_EQ(shell("echo 257 97 | \"$CHASSIS\" tokenizer decode tok --special"), "</s>a\n");
  EXPECT_EQ(shell("\"$CHASSIS\" tokenizer encode tok a.txt b.jsonl | \"$CHASSIS\" tokenizer decode tok > back; "
                  "cat a.txt b.jsonl | cmp - back"),
            "");
}

TEST_F(TokenizerVerb, TheNewDirectoryIsCompleteOrNotThere) {
  test::write_text(scratch_ / "bad.txt", "good\nb\xC3\x28\n");
  const std::string refusal = run({"train", "--vocab", "300", "a.txt", "bad.txt", "--out", "deep/tok"}, 2);
  EXPECT_HAS(refusal, "bad.txt:2:2: not UTF-8: byte 0xC3");
  EXPECT_FALSE(fs::exists(scratch_ / "deep"));
  EXPECT_HAS(run({"train", "--vocab", "5", "a.txt", "--out", "tok"}, 2), "a vocabulary of 5, at least 261");
  EXPECT_FALSE(fs::exists(scratch_ / "tok"));

  fs::create_directories(scratch_ / "tok");
  run({"train", "--vocab", "300", "a.txt", "--out", "tok/"});
  const std::string again = run({"train", "--vocab", "290", "a.txt", "--out", "tok"}, 2);
  EXPECT_HAS(again, "'tok' exists and is not empty");
  EXPECT_HAS(again, "hint: name a new directory, or remove it first");
  for (const auto& entry : fs::directory_iterator(scratch_.path()))
    EXPECT_EQ(entry.path().filename().string().find("tok."), std::string::npos) << entry.path();
}

TEST_F(TokenizerVerb, RefusesWhatItCannotRead) {
  EXPECT_HAS(run({"train", "--vocab", "300", "nothing.txt", "--out", "tok"}, 2),
             "path = \"nothing.txt\": no such file");
  test::write_text(scratch_ / "c.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"a\"}\n");
  EXPECT_HAS(run({"train", "--vocab", "300", "c.jsonl", "--out", "tok"}, 2), "c.jsonl:2");
  EXPECT_HAS(run({"encode", "nothing"}, 2), "'nothing' is not a directory");
  fs::create_directories(scratch_ / "empty");
  EXPECT_HAS(run({"encode", "empty"}, 2), "no tokenizer that opens the files of 'empty' is installed");
  EXPECT_HAS(run({"train", "--vocab", "300", "a.txt", "--out", "tok", "--plugin", "bytes"}, 2),
             "plugin 'bytes' 0.1.0 trains no vocabulary");
  run({"train", "--vocab", "300", "a.txt", "--out", "tok"});
  EXPECT_HAS(shell("printf '1 2\\n3 x\\n' | \"$CHASSIS\" tokenizer decode tok", 2),
             "standard input:2: 'x' is not an id");
  EXPECT_HAS(shell("echo 999 | \"$CHASSIS\" tokenizer decode tok", 2),
             "id 999 is not in the tokenizer's vocabulary of ");
  EXPECT_HAS(shell("printf 'ok\\n\\377\\n' | \"$CHASSIS\" tokenizer encode tok", 2),
             "standard input:2:1: not UTF-8: byte 0xFF");
}

TEST_F(TokenizerVerb, EndsQuietlyWhenNobodyReads) {
  run({"train", "--vocab", "300", "a.txt", "--out", "tok"});
  EXPECT_EQ(shell("yes 'the words' | \"$CHASSIS\" tokenizer encode tok | head -n 1"), "264 32 265\n");
}

}  // namespace
}  // namespace chassis
