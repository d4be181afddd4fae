#include "host/data/row_sample.hpp"

#include <gtest/gtest.h>

#include "tests/host/data/chat_support.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

struct RowSampleTest : testing::Test {
  TempFolder folder;
  DataConfig data;

  RowSampleTest() {
    data.supervised = true;
    data.packing = Packing::kBestFit;
    data.overflow = Overflow::kDrop;
    data.seq_len = 8;
    folder.write("a.jsonl",
                 "{\"prompt\":\"a\",\"completion\":\"bc\"}\n"
                 "{\"prompt\":\"x\",\"completion\":\"0123456789\"}\n");
    folder.write("b.jsonl", "{\"prompt\":\"z\",\"completion\":\"y\"}\n");
  }
  RowSample sample(const SampleLimits& limits = {}) {
    return sample_rows(set_of(DataFormat::kPromptCompletion, folder.path()), data, &kTokenizer, limits);
  }
};

TEST_F(RowSampleTest, HasTheRowsOfAllFiles) {
  const RowSample all = sample();
  EXPECT_EQ(all.num_files, 2u);
  EXPECT_EQ(all.num_rows, 3u);
  EXPECT_EQ(all.lengths, (std::vector<uint64_t>{4, 12, 3}));
  EXPECT_EQ(all.num_tokens, 19u);
  EXPECT_EQ(all.longest(), 12u);
  EXPECT_EQ(all.num_longer_than(8), 1u);
  EXPECT_FALSE(all.is_part);
}

TEST_F(RowSampleTest, EndsAtItsLimitsAndSaysSo) {
  EXPECT_EQ(sample({.rows = 2}).num_rows, 2u);
  EXPECT_TRUE(sample({.rows = 2}).is_part);
  EXPECT_EQ(sample({.tokens = 4}).num_rows, 1u);
  EXPECT_FALSE(sample({.rows = 3}).is_part) << "there is no fourth row";
}

TEST_F(RowSampleTest, CountsWhatCannotBeTrained) {
  data.chat.slots = std::make_shared<SlotTemplate>(chatml_slots());
  data.chat.template_name = "chatml";
  folder.write("a.jsonl", R"({"messages":[{"role":"user","content":"a"}]})");
  folder.write("b.jsonl", R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  const RowSample seen = sample_rows(set_of(DataFormat::kMessages, folder.path()), data, &kTokenizer);
  EXPECT_EQ(seen.num_rows, 2u);
  EXPECT_EQ(seen.num_dropped(), 1u);
  EXPECT_EQ(seen.dropped, (std::map<std::string, uint64_t>{{"no token is trained", 1}}));
  EXPECT_EQ(seen.first_dropped, folder.path() + "/a.jsonl:1");
}

}  // namespace
}  // namespace chassis
