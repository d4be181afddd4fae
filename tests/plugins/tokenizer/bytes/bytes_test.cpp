// The bytes tokenizer, through its table.
#include <gtest/gtest.h>

#include "chassis/kind/tokenizer.h"
#include "tests/support/fake_host.hpp"

namespace {

struct Encoded {
  uint64_t index = 0;
  std::vector<int32_t> ids;
  std::vector<uint64_t> begin, end;
};

class Bytes : public testing::Test {
 protected:
  std::vector<Encoded> encode(const std::vector<std::string>& texts, uint32_t flags) {
    std::vector<chassis_str_t> views;
    for (const std::string& text : texts) views.push_back(fake::str(text));
    std::vector<Encoded> out;
    const chassis_token_sink_t sink = {sizeof sink, 0, &out,
                                       [](const chassis_token_sink_t* self, uint64_t index, const int32_t* ids,
                                          const uint64_t* begin, const uint64_t* end, uint64_t n) {
                                         static_cast<std::vector<Encoded>*>(self->impl)
                                             ->push_back({index, {ids, ids + n}, {begin, begin + n}, {end, end + n}});
                                       }};
    host_.check(table_.encode(instance_.self(), views.data(), views.size(), flags, &sink));
    return out;
  }
  std::string decode(const std::vector<int32_t>& ids, uint32_t flags) {
    std::string out;
    const chassis_text_sink_t sink = text_sink(out);
    host_.check(table_.decode(instance_.self(), ids.data(), ids.size(), flags, &sink));
    return out;
  }
  static chassis_text_sink_t text_sink(std::string& out) {
    return {sizeof(chassis_text_sink_t), 0, &out, [](const chassis_text_sink_t* self, chassis_str_t text) {
              *static_cast<std::string*>(self->impl) = fake::text_of(text);
            }};
  }
  chassis_token_t token(int32_t id) {
    chassis_token_t token{};
    token.struct_size = sizeof token;
    host_.check(table_.token(instance_.self(), id, &token));
    return token;
  }
  int32_t id_of(const std::string& text) {
    int32_t id = -2;
    host_.check(table_.id_of(instance_.self(), fake::str(text), &id));
    return id;
  }

  fake::Host host_;
  fake::Plugin plugin_{host_, CHASSIS_TEST_PLUGIN_DIR "/bytes.so"};
  fake::Instance instance_{host_, plugin_, "tokenizer", "bytes"};
  const chassis_tokenizer_t& table_ = instance_.interface<chassis_tokenizer_t>(CHASSIS_TOKENIZER_ID);
};

TEST_F(Bytes, HasThreeSpecialIdsAfterTheBytes) {
  chassis_tokenizer_info_t info{};
  info.struct_size = sizeof info;
  host_.check(table_.info(instance_.self(), &info));
  EXPECT_EQ(info.flags, CHASSIS_TOKENIZER_ADDS_BOS);
  EXPECT_EQ(info.bos_id, 256);
  EXPECT_EQ(info.eos_id, 257);
  EXPECT_EQ(info.pad_id, 258);
  EXPECT_EQ(info.unk_id, -1);
  EXPECT_EQ(info.vocab_size, 259);
  EXPECT_EQ(fake::text_of(info.fingerprint), "bytes-1");
  EXPECT_EQ(fake::text_of(info.chat_template), "");
}

TEST_F(Bytes, OffersNeitherFilesNorTemplatesNorTraining) {
  EXPECT_EQ(table_.open, nullptr);
  EXPECT_EQ(table_.render, nullptr);
  EXPECT_EQ(table_.train, nullptr);
}

TEST_F(Bytes, DecodesEveryByteThatItEncodes) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  Encoded encoded = encode({text}, 0).at(0);
  EXPECT_EQ(encoded.ids[200], 200);
  EXPECT_EQ(encoded.begin[200], 200u);
  EXPECT_EQ(encoded.end[200], 201u);
  encoded.ids.insert(encoded.ids.begin() + 3, 257);  // decode leaves it out
  EXPECT_EQ(decode(encoded.ids, 0), text);
}

TEST_F(Bytes, ATextNeverSpellsASpecialId) {
  const std::vector<Encoded> encoded = encode({"<eos>", "", "x"}, CHASSIS_ENCODE_SPECIAL);
  ASSERT_EQ(encoded.size(), 3u);
  EXPECT_EQ(encoded[0].ids, (std::vector<int32_t>{'<', 'e', 'o', 's', '>'}));
  EXPECT_TRUE(encoded[1].ids.empty());
  EXPECT_EQ(encoded[2].index, 2u);
}

TEST_F(Bytes, SpecialIdsAreDecodedOnRequest) {
  EXPECT_EQ(decode({256, 'a', 257, 258}, CHASSIS_DECODE_KEEP_SPECIAL), "<bos>a<eos><pad>");
  EXPECT_EQ(decode({256, 'a', 257, 258}, 0), "a");
}

TEST_F(Bytes, EveryIdIsFoundByItsText) {
  EXPECT_EQ(fake::text_of(token(256).text), "<bos>");
  EXPECT_EQ(token(256).flags, CHASSIS_TOKEN_SPECIAL);
  EXPECT_EQ(fake::text_of(token('a').text), "a");
  EXPECT_EQ(token('a').flags, 0u);
  EXPECT_EQ(fake::text_of(token(10).text), "<0x0A>");
  EXPECT_EQ(fake::text_of(token(255).text), "<0xFF>");
  for (int32_t id = 0; id < 259; ++id) EXPECT_EQ(id_of(fake::text_of(token(id).text)), id);
  EXPECT_EQ(id_of("ab"), -1);
  EXPECT_EQ(id_of(""), -1);
}

TEST_F(Bytes, RefusesAnIdOutsideTheVocabulary) {
  std::string out;
  const chassis_text_sink_t sink = text_sink(out);
  for (const int32_t id : {259, -1})
    EXPECT_EQ(host_.message(table_.decode(instance_.self(), &id, 1, 0, &sink)),
              "token id " + std::to_string(id) + " is outside the vocabulary of 259");
  chassis_token_t token{};
  token.struct_size = sizeof token;
  EXPECT_EQ(host_.message(table_.token(instance_.self(), 259, &token)),
            "token id 259 is outside the vocabulary of 259");
}

}  // namespace
