// Ids become text piece by piece, and never half a character.
#include "host/data/token_stream.hpp"

#include <gtest/gtest.h>

#include <map>

#include "host/base/printable.hpp"

namespace chassis {
namespace {

// Decodes as a SentencePiece tokenizer does: "▁" is a space, but not in front, and bytes that form no character become
// one U+FFFD each. Ids below 256 are bytes; id 256 is special.
class Pieces : public Tokenizer {
 public:
  explicit Pieces(bool replaces = true) : replaces_(replaces) {}
  void encode(std::string_view, std::vector<int32_t>&) const override {}
  std::string decode(std::span<const int32_t> ids, bool keep_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 256) text += static_cast<char>(id);
      if (id == 256 && keep_special) text += "</s>";
      if (id > 256) text += words_.at(id);
    }
    if (text.starts_with(' ')) text.erase(0, 1);
    if (!replaces_) return text;
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const Character character = first_character(std::string_view(text).substr(i));
      out += character.num_bytes == 0 ? "\xEF\xBF\xBD" : text.substr(i, character.num_bytes);
      i += std::max<size_t>(character.num_bytes, 1);
    }
    return out;
  }
  int64_t vocab_size() const override { return 300; }
  int32_t bos_id() const override { return -1; }
  int32_t eos_id() const override { return 256; }
  int32_t pad_id() const override { return -1; }
  std::string fingerprint() const override { return "pieces"; }

 private:
  const bool replaces_;
  const std::map<int32_t, std::string> words_ = {{257, " Hello"}, {258, " world"}, {259, "!"}, {260, "\xE6\x97"}};
};

std::vector<std::string> pieces_of(TokenStream& stream, const std::vector<int32_t>& ids) {
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(stream.add(id));
  return pieces;
}
using Texts = std::vector<std::string>;

TEST(TokenStream, KeepsSpacesBetweenWordsThatAreDecodedOneByOne) {
  const Pieces tokenizer;
  TokenStream stream(tokenizer);
  EXPECT_EQ(pieces_of(stream, {257, 258, 259, 258}), (Texts{"Hello", " world", "!", " world"}));
  EXPECT_EQ(stream.finish(), "");
}

TEST(TokenStream, AContinuationKeepsItsFirstSpace) {
  const Pieces tokenizer;
  TokenStream stream(tokenizer);
  const int32_t prompt[] = {257, 259};
  stream.continue_from(prompt);
  EXPECT_EQ(pieces_of(stream, {258, 259}), (Texts{" world", "!"}));
}

TEST(TokenStream, ASpecialTokenIsNoReasonToDropASpace) {
  const Pieces tokenizer;
  TokenStream stream(tokenizer);
  EXPECT_EQ(pieces_of(stream, {257, 256, 256, 258}), (Texts{"Hello", "", "", " world"}));
  TokenStream keeping(tokenizer, true);
  EXPECT_EQ(pieces_of(keeping, {257, 256, 258}), (Texts{"Hello", "</s>", " world"}));
}

TEST(TokenStream, ACharacterOfSeveralIdsIsReturnedWhole) {
  for (const bool replaces : {true, false}) {
    const Pieces tokenizer(replaces);
    TokenStream stream(tokenizer);
    EXPECT_EQ(pieces_of(stream, {'a', 0xF0, 0x9F, 0x98, 0x80, 'b', 260, 0xA5}),
              (Texts{"a", "", "", "", "\xF0\x9F\x98\x80", "b", "", "\xE6\x97\xA5"}));
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(TokenStream, WhatNeverBecomesACharacterIsReturnedInTheEnd) {
  const Pieces raw(false);
  TokenStream stream(raw);
  EXPECT_EQ(pieces_of(stream, {'a', 0xE6, 0x97}), (Texts{"a", "", ""}));
  EXPECT_EQ(stream.finish(), "\xE6\x97");
  // The stream does not wait for more after a byte that begins no character.
  EXPECT_EQ(pieces_of(stream, {0xFF, 'x'}), (Texts{"\xFF", "x"}));

  const Pieces replacing;
  TokenStream garbage(replacing);
  std::string all;
  for (int i = 0; i < 1000; ++i) all += garbage.add(0xFF);
  all += garbage.finish();
  EXPECT_EQ(all.size(), 3000u);
}

TEST(TokenStream, ATextIsTheSameInPieces) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "größer 日本語 \xF0\x9F\x98\x80 x";
  for (const bool replaces : {true, false}) {
    const Pieces tokenizer(replaces);
    TokenStream stream(tokenizer);
    std::string all;
    for (const char c : text) {
      const std::string piece = stream.add(static_cast<unsigned char>(c));
      EXPECT_TRUE(is_utf8(piece));
      all += piece;
    }
    EXPECT_EQ(all + stream.finish(), text);
  }
}

}  // namespace
}  // namespace chassis
