// Which token pads the rows of a model that scores, and where other programs read a score.
#include "host/save/pad_token.hpp"

#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {
namespace {

// Words, of which those in <> are special.
class Words final : public Tokenizer {
 public:
  explicit Words(std::vector<std::string> words, int32_t pad = -1) : words_(std::move(words)), pad_(pad) {}
  void encode(std::string_view, std::vector<int32_t>& ids) const override { ids.clear(); }
  std::string decode(std::span<const int32_t>, bool) const override { return ""; }
  int64_t vocab_size() const override { return static_cast<int64_t>(words_.size()); }
  int32_t bos_id() const override { return id_of("<s>"); }
  int32_t eos_id() const override { return id_of("</s>"); }
  int32_t pad_id() const override { return pad_; }
  std::string fingerprint() const override { return "words"; }
  TokenText token(int32_t id) const override {
    const std::string& word = words_.at(static_cast<size_t>(id));
    return {.text = word, .special = word.starts_with('<')};
  }
  int32_t id_of(std::string_view text) const override {
    const auto found = std::ranges::find(words_, text);
    return found == words_.end() ? -1 : static_cast<int32_t>(found - words_.begin());
  }

 private:
  std::vector<std::string> words_;
  int32_t pad_;
};

const Words kLlama2({"<unk>", "<s>", "</s>", "a", "pad"});
const Words kLlama3({"a", "<s>", "</s>", "<eot>", "<unk>", "<reserved_0>", "<reserved_1>"});

TEST(PadToken, IsChosenByRuleIfTheTokenizerNamesNone) {
  const auto chosen = [](const Words& words, const std::vector<int32_t>& finals, int64_t vocab_size = 100,
                         int64_t of_model = -1) {
    const PadToken pad = choose_pad_token(words, finals, vocab_size, of_model);
    EXPECT_TRUE(pad.is_new);
    EXPECT_EQ(pad.text, words.token(pad.id).text);
    return pad.text;
  };
  EXPECT_EQ(chosen(kLlama2, {2}), "<unk>") << "\"pad\" is an ordinary word";
  EXPECT_EQ(chosen(kLlama3, {2, 3}), "<reserved_0>");
  EXPECT_EQ(chosen(kLlama3, {2, 5}), "<reserved_1>");
  EXPECT_EQ(chosen(kLlama3, {2, 3}, 5), "<unk>") << "the model has no id 5";
  EXPECT_EQ(chosen(kLlama3, {2, 3}, 100, 6), "<reserved_1>") << "config.json names it";
  EXPECT_EQ(chosen(kLlama3, {2, 3}, 100, 3), "<reserved_0>") << "that of config.json ends sequences";
  EXPECT_EQ(chosen(kLlama3, {2, 3}, 100, 50), "<reserved_0>") << "that of config.json does not exist";
  EXPECT_EQ(chosen(Words({"<unk>", "<reserved>", "<|vision_pad|>"}), {}), "<|vision_pad|>");
}

// A directory as an export leaves it; the row is one of the data.
TEST(PadToken, OfAnExportEndsNoRowOfTheRun) {
  const ScratchDirectory folder;
  const SourcePosition row{"answers.jsonl", 3, 0};
  const auto error = [&](const std::vector<int32_t>& ids) -> std::string {
    try {
      require_score_at_end_in(folder.path(), ids, row);
    } catch (const Error& refused) {
      return refused.where().text() + ": " + refused.message();
    }
    return "nothing";
  };
  EXPECT_EQ(error({5, 6, 2}), "nothing") << "an adapter has no config.json";
  write_text(folder / "config.json", R"({"pad_token_id": 2})");
  EXPECT_EQ(error({5, 2, 6}), "nothing");
  const std::string message = error({5, 6, 2, 2});
  EXPECT_HAS(message, "answers.jsonl:3: ");
  EXPECT_HAS(message,
             "config.json: with pad_token_id = 2, other programs would read the score of a sequence of 4 tokens "
             "at token 2, and it is trained at the last");
  write_text(folder / "config.json", R"({"pad_token_id": null})");
  EXPECT_EQ(error({5, 6, 2}), "nothing") << "without padding the last column counts";
}

TEST(PadToken, IsTheTokenizersOwnUnlessItEndsSequences) {
  const PadToken own = choose_pad_token(Words({"a", "</s>", "<p>"}, 2), {1}, 3, 0);
  EXPECT_EQ(own.id, 2);
  EXPECT_FALSE(own.is_new);
  const auto refused = [](const Words& words, int64_t vocab_size = 100) {
    return refusal([&] { choose_pad_token(words, {1}, vocab_size, -1); });
  };
  const std::string ends = refused(Words({"a", "</s>", "<unk>"}, 1));
  EXPECT_HAS(ends, "the tokenizer's pad token '</s>' (id 1) also ends sequences");
  EXPECT_HAS(ends, "set pad_token in tokenizer_config.json to another token, such as '<unk>' (id 2)");
  EXPECT_HAS(refused(Words({"a", "</s>", "<pad>"}, 2), 2), "has id 2, and the model's vocabulary has 2 ids");
  const std::string none = refused(Words({"a", "</s>"}));
  EXPECT_HAS(none, "the tokenizer has no pad token, and none of its special tokens is free");
  EXPECT_HAS(none, "add a special token to the tokenizer");
}

TEST(ScorePosition, IsThatOfTransformers) {
  const std::vector<int32_t> right = {5, 6, 2, 9, 9}, left = {9, 9, 5, 6, 2}, inside = {5, 9, 6, 9}, pads = {9, 9};
  EXPECT_EQ(score_position(right, 9), 2);
  EXPECT_EQ(score_position(left, 9), 4);
  EXPECT_EQ(score_position(inside, 9), 2);
  EXPECT_EQ(score_position(pads, 9), 0);
  EXPECT_EQ(score_position(right, -1), 4);
  EXPECT_EQ(score_position({{5, 6, 2, 2, 2}}, 2), 1) << "pad = eos: the token before the end";
}

TEST(ScorePosition, MustBeTheEndOfASequence) {
  require_score_at_end({5, 9, 6}, 9);
  require_score_at_end({5, 6}, -1);
  EXPECT_HAS(refusal([] {
               require_score_at_end({5, 6, 2}, 2);
             }),
             "with pad_token_id = 2, other programs would read the score of a sequence of 3 tokens at token 2");
}

TEST(PadTokenFiles, NameANewToken) {
  const ScratchDirectory folder;
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "</s>", "pad_token": null})");
  write_text(folder / "special_tokens_map.json", R"({"eos_token": "</s>"})");
  ChatFiles files;
  files.written.emplace_back("tokenizer_config.json", R"({"chat_template": "x", "eos_token": "</s>"})");
  write_pad_token({0, "<unk>", false}, folder.path(), files);
  EXPECT_EQ(files.written.size(), 1u) << "the tokenizer has it";
  write_pad_token({0, "<unk>", true}, folder.path(), files);
  ASSERT_EQ(files.written.size(), 2u);
  for (const auto& [name, text] : files.written) {
    EXPECT_EQ(Json::parse(text).at("pad_token"), "<unk>") << name;
    EXPECT_EQ(Json::parse(text).at("eos_token"), "</s>") << name;
    EXPECT_EQ(Json::parse(text).contains("chat_template"), name == "tokenizer_config.json");
    EXPECT_TRUE(files.left_out.contains(name));
  }
}

}  // namespace
}  // namespace chassis::test
