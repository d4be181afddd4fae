// The bytes tokenizer, through its table.
#include <gtest/gtest.h>

#include "chassis/kind/tokenizer_1.h"
#include "tests/support/fake_host.hpp"

namespace {

class Bytes : public testing::Test {
 protected:
  std::vector<int32_t> encode(const std::string& text, std::vector<uint64_t>& offsets) {
    std::vector<int32_t> ids(text.size());
    offsets.resize(text.size());
    uint64_t count = 0;
    host_.check(table_.encode(instance_.self(), fake::str(text), ids.data(), offsets.data(), ids.size(), &count));
    EXPECT_EQ(count, text.size());
    return ids;
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
  EXPECT_EQ(info.bos_id, 256);
  EXPECT_EQ(info.eos_id, 257);
  EXPECT_EQ(info.pad_id, 258);
  EXPECT_EQ(info.vocab_size, 259);
  EXPECT_EQ(fake::text_of(info.fingerprint), "bytes-1");
}

TEST_F(Bytes, DecodesEveryByteThatItEncodes) {
  std::string text;
  for (int i = 0; i < 256; ++i) text += static_cast<char>(i);
  std::vector<uint64_t> offsets;
  std::vector<int32_t> ids = encode(text, offsets);
  EXPECT_EQ(ids[200], 200);
  EXPECT_EQ(offsets[200], 200u);
  ids.insert(ids.begin() + 3, 257);  // decode leaves it out
  std::string back(text.size(), '\0');
  uint64_t count = 0;
  host_.check(table_.decode(instance_.self(), ids.data(), ids.size(), back.data(), back.size(), &count));
  EXPECT_EQ(count, 256u);
  EXPECT_EQ(back, text);
}

TEST_F(Bytes, CountsIdsBeyondTheCapacityAndDoesNotWriteThem) {
  int32_t ids[3] = {-1, -1, -1};
  uint64_t count = 0;
  host_.check(table_.encode(instance_.self(), fake::str("hello"), ids, nullptr, 2, &count));
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(ids[1], 'e');
  EXPECT_EQ(ids[2], -1);
}

TEST_F(Bytes, RefusesAnIdOutsideTheVocabulary) {
  const int32_t id = 259;
  uint64_t count = 0;
  EXPECT_EQ(host_.message(table_.decode(instance_.self(), &id, 1, nullptr, 0, &count)),
            "token id 259 is outside the vocabulary of 259");
}

}  // namespace
