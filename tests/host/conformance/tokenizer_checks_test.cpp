// The conformance tests of tokenizers find each fault of a faulty tokenizer.
#include <gtest/gtest.h>

#include <cstdlib>

#include "host/conformance/tokenizer_checks.hpp"
#include "host/conformance/tokenizer_member.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class TokenizerConformance : public testing::Test {
 protected:
  TokenizerReport report(const std::string& id, const std::string& fault = "", const std::string& directory = "") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const auto instance = plugins_.make("tokenizer", id);
    const CheckedMember member = {*instance, {}, [&](const Json&) { return plugins_.make("tokenizer", id); }};
    TokenizerReport report = examine_tokenizer(member, directory);
    ::unsetenv("NONCONFORMING");
    return report;
  }
  std::string failures(const std::string& fault, const std::string& id = "words") {
    std::string text;
    for (const std::string& failure : report(id, fault).failures) text += failure + "\n";
    return text;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
};

TEST_F(TokenizerConformance, OurTokenizersPass) {
  EXPECT_EQ(failures("", "bytes"), "");
  EXPECT_EQ(failures(""), "");
  EXPECT_EQ(report("words").left_out, "");
}

TEST_F(TokenizerConformance, FindsWrongIdsAndOffsets) {
  EXPECT_HAS(failures("id outside"), "plain ASCII: id 0 is 1048576, the vocabulary has ");
  EXPECT_HAS(failures("begins back"), "begins at byte 0, the one before it at byte 3");
  EXPECT_HAS(failures("ends outside"), "plain ASCII: id 0 covers bytes 0 to 45 of a text of 44 bytes");
  EXPECT_HAS(failures("covers nothing"), "plain ASCII: no id covers byte 4");
  EXPECT_HAS(failures("counts characters"), "(offsets are counted in bytes, not in characters)");
  EXPECT_HAS(failures("overlaps"), "plain ASCII: ids 0 and 1 both cover bytes ");
  EXPECT_HAS(failures("depends on calls"), "plain ASCII: one round trip gives ");
}

TEST_F(TokenizerConformance, FindsSpecialTokensThatAreNotWanted) {
  EXPECT_HAS(failures("finds special"), "the special token '<s>' (256) is found in a text, although it is not wanted");
  EXPECT_HAS(failures("misses special"), "the special token '<s>' (256) is not found in 'a<s>b'");
  EXPECT_HAS(failures("keeps special"), "the special token '<s>' (256) is decoded although it is not wanted");
  EXPECT_HAS(failures("drops special"), "the special token '<s>' (256) is not decoded on request");
}

TEST_F(TokenizerConformance, FindsAWrongVocabulary) {
  EXPECT_HAS(failures("upper case"), "is decoded as '");
  EXPECT_HAS(failures("not UTF-8"), "the text of id 0 is not UTF-8: '\\xff'");
  EXPECT_HAS(failures("another id"), "id 70 is spelled 'F', which is found as id 71");
  EXPECT_HAS(failures("any text"), "a text that no vocabulary spells has the id 0, expected -1");
  EXPECT_HAS(failures("any id"), "decode of id -1 of a vocabulary of ");
}

TEST_F(TokenizerConformance, FindsAWrongChat) {
  EXPECT_HAS(failures("no newline"), "ChatML: rendered as '<|im_start|>system\\nBe brief.<|im_end|><|im_start|>user");
  EXPECT_HAS(failures("long span"), "ChatML: the spans are leaf 1 of message 2: bytes ");
  EXPECT_HAS(failures("accepts"), "a template that refuses is rendered, expected INVALID_ARGUMENT");
  EXPECT_HAS(failures("loops"), "an endless template is rendered");
  EXPECT_HAS(failures("other words"), "a template that refuses is refused as 'no', expected the words");
  EXPECT_HAS(failures("unproven"), "ChatML: refused: not proven");
}

TEST_F(TokenizerConformance, FindsATrainingThatDependsOnThreadsOrMakesOtherFiles) {
  EXPECT_HAS(failures("depends on threads"), "train: other files for the same texts with 4 threads");
  EXPECT_HAS(failures("another file"), "open refuses the files that train makes: there is no ");
  EXPECT_HAS(failures("reads one text"), ": train reads 1 of 301 texts");
}

TEST_F(TokenizerConformance, FindsAFingerprintThatDoesNotChangeWithTheVocabulary) {
  const std::string trained = failures("constant fingerprint");
  EXPECT_HAS(trained, "with another vocabulary, ");
  EXPECT_HAS(trained, "gets different ids, but the fingerprint is still 'words': it would read wrong caches");
  const TokenizerFolder folder(TokenizerFiles{{"words.txt", "the\nquick\nzebra\n"}, {"README.md", "not read\n"}});
  const TokenizerReport given = report("words_reader", "constant fingerprint", folder.path());
  ASSERT_EQ(given.failures.size(), 1u);
  EXPECT_HAS(given.failures[0], "with the last line of words.txt removed, 'zebra' gets different ids, but ");
}

TEST_F(TokenizerConformance, AVocabularyInJsonIsAltered) {
  const TokenizerFolder folder(
      TokenizerFiles{{"tokenizer.json", R"({"model": {"vocab": {"e": 1, "t": 2}}})"}, {"data.bin", std::string(1, 0)}});
  const auto altered = altered_files(folder.path(), {"tokenizer.json"});
  ASSERT_EQ(altered.size(), 1u);
  EXPECT_HAS(altered[0].files.at("tokenizer.json"), R"("vocab":{"e":2,"t":1})");
  EXPECT_EQ(altered[0].what, "the ids of 'e' and 't' exchanged in tokenizer.json");
}

TEST_F(TokenizerConformance, FindsFlagsSizesAndLaterCallsThatAreWrong) {
  EXPECT_HAS(failures("no special flag"), "its bos id 256, '<s>', does not have the flag CHASSIS_TOKEN_SPECIAL");
  EXPECT_HAS(failures("ignores the size"), "train: a vocabulary of ");
  EXPECT_HAS(failures("wrong in long texts"), "a long text: '");
  EXPECT_HAS(failures("wrong after calls"), "plain ASCII: other ids in call ");
  EXPECT_HAS(failures("leaves threads"), "2000 calls of encode left 20 threads running, expected none");
}

TEST_F(TokenizerConformance, FindsARefusalWithoutWords) {
  EXPECT_HAS(failures("no reason"), "open refuses without a message");
  EXPECT_HAS(failures("no words"), "a template without an end is refused as ''");
}

TEST_F(TokenizerConformance, ATokenizerThatNeedsFilesAndMakesNoneNeedsADirectory) {
  const TokenizerReport found = report("words_reader");
  EXPECT_EQ(found.failures, std::vector<std::string>());
  EXPECT_EQ(found.left_out,
            "it needs the files of a tokenizer (it needs a directory with words.txt); give a directory with --model "
            "DIR");
}

TEST_F(TokenizerConformance, ADirectoryThatIsGivenIsOpened) {
  const TokenizerFolder folder(TokenizerFiles{{"words.txt", "the\nquick\nfox\n"}});
  const TokenizerReport good = report("words_reader", "", folder.path());
  EXPECT_EQ(good.failures, std::vector<std::string>());
  EXPECT_EQ(good.left_out, "");
  const TokenizerReport found = report("words", "", "/nonexistent");
  ASSERT_EQ(found.failures.size(), 1u);
  EXPECT_HAS(found.failures[0], "open refuses /nonexistent: there is no /nonexistent/words.txt");
}

}  // namespace
}  // namespace chassis
