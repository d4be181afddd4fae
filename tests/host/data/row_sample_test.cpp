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

// A row of the run holds an answer together with the mismatch of its prompt.
TEST_F(RowSampleTest, HasTheLengthsOfAnswersWithTheirMismatches) {
  data.chat.slots = std::make_shared<SlotTemplate>(chatml_slots());
  data.chat.template_name = "chatml";
  data.seq_len = 400;
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .num_targets = 1};
  folder.write("a.jsonl", R"({"prompt":"a","completion":"b","label":true})");
  folder.write("b.jsonl", R"({"prompt":"c","completion":"dddd","label":false})");
  const auto sample_of = [&](const SampleLimits& limits) {
    return sample_rows(set_of(DataFormat::kLabelled, folder.path()), data, &kTokenizer, limits);
  };
  const std::vector<uint64_t> alone = sample_of({}).lengths;
  ASSERT_EQ(alone.size(), 2u);
  data.sequences->mismatches = true;
  EXPECT_EQ(sample_of({}).lengths, (std::vector<uint64_t>{2 * alone[0] + 3, 2 * alone[1] - 3}));
  EXPECT_EQ(sample_of({}).num_tokens, 2 * (alone[0] + alone[1]));
  EXPECT_EQ(sample_of({.rows = 1}).lengths, (std::vector<uint64_t>{alone[0]})) << "there is no other prompt yet";
  data.seq_len = static_cast<int64_t>(alone[0]) * 2;
  data.overflow = Overflow::kTruncateLeftPrompt;
  EXPECT_EQ(sample_of({}).longest(), 2 * alone[0] - 1) << "both sequences lose equally many tokens";
  EXPECT_EQ(sample_of({}).changes.at("rows longer than train.seq_len are cut"), 2u);
}

// A row of the run holds both answers of a pair, or all answers of a rollout, each with the prompt.
TEST_F(RowSampleTest, HasTheLengthsOfWholePairsAndRollouts) {
  data.chat.slots = std::make_shared<SlotTemplate>(chatml_slots());
  data.chat.template_name = "chatml";
  data.seq_len = 1000;
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .num_targets = 1};
  folder.write("a.jsonl", R"({"prompt":"a","chosen":"b","rejected":"cccc"})");
  folder.write("b.jsonl", R"({"prompt":"a","chosen":"bb","rejected":"c"})");
  DataSetConfig pairs = set_of(DataFormat::kPreference, folder.path());
  pairs.split_pairs = true;
  const std::vector<uint64_t> answers = sample_rows(pairs, data, &kTokenizer).lengths;
  ASSERT_EQ(answers.size(), 4u);
  pairs.split_pairs = false;
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_PAIRS};
  const RowSample seen = sample_rows(pairs, data, &kTokenizer);
  EXPECT_EQ(seen.lengths, (std::vector<uint64_t>{answers[0] + answers[1], answers[2] + answers[3]}));
  EXPECT_EQ(seen.num_tokens, answers[0] + answers[1] + answers[2] + answers[3]);
  folder.write("a.jsonl", R"({"prompt":"a","completions":[{"text":"b","reward":1},{"text":"cccc","reward":0}]})");
  folder.write("b.jsonl", R"({"prompt":"a","completions":[{"text":"bb","reward":1},{"text":"c","reward":0}]})");
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_ROLLOUTS, .num_targets = 1};
  EXPECT_EQ(sample_rows(set_of(DataFormat::kRollouts, folder.path()), data, &kTokenizer).lengths, seen.lengths);
}

TEST_F(RowSampleTest, HasBothAnswersOfASplitPair) {
  data.chat.slots = std::make_shared<SlotTemplate>(chatml_slots());
  data.chat.template_name = "chatml";
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .num_targets = 1};
  folder.write("a.jsonl", R"({"prompt":"a","chosen":"b","rejected":"cc"})");
  folder.write("b.jsonl", R"({"prompt":"a","chosen":"b","rejected":"b"})");
  DataSetConfig set = set_of(DataFormat::kPreference, folder.path());
  set.split_pairs = true;
  const RowSample seen = sample_rows(set, data, &kTokenizer);
  ASSERT_EQ(seen.lengths.size(), 2u);
  EXPECT_EQ(seen.lengths[1], seen.lengths[0] + 1);
  EXPECT_EQ(seen.num_rows, 2u);
  EXPECT_EQ(seen.num_dropped(), 1u);
}

}  // namespace
}  // namespace chassis
