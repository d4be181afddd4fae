// Rows that an objective reads, as `chassis data preview` shows them and `chassis data stats` counts them.
#include "host/data/preview.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "host/data/target_counts.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

struct PreviewOfUnits : testing::Test {
  TempFolder folder;
  DataConfig data;

  PreviewOfUnits() {
    data.seq_len = 400;
    data.packing = Packing::kBestFit;
    data.overflow = Overflow::kDrop;
    data.supervised = true;
    data.chat = chatml_options().chat;
  }

  void use(DataFormat format, uint32_t units, const std::string& rows, std::vector<std::string> classes = {}) {
    DataSetConfig set = text_set(folder.write("rows.jsonl", rows));
    set.format = format;
    set.classes = std::move(classes);
    data.train = {set};
    data.sequences = SequenceNeeds{};
    data.sequences->units = units;
    data.sequences->num_targets = units == CHASSIS_OBJECTIVE_PAIRS ? 0 : 1;
  }
  std::vector<PreviewRow> shown() {
    std::vector<PreviewRow> rows;
    preview_rows(data.train.at(0), data, &kTokenizer, {}, [&](const PreviewRow& row) { rows.push_back(row); });
    return rows;
  }
  static std::string marked(const PreviewRow& row) {
    std::string text;
    for (const PreviewPiece& piece : row.pieces)
      text += piece.state == TokenState::kTrained ? "[" + piece.text + "]" : piece.text;
    return text;
  }
};

TEST_F(PreviewOfUnits, ShowBothAnswersOfAPair) {
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_PAIRS,
      R"({"prompt":"q","chosen":"yes","rejected":"no no","margin":0.5,"id":1})");
  const std::vector<PreviewRow> rows = shown();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].what, "chosen");
  EXPECT_EQ(rows[0].about, "margin 0.5");
  EXPECT_EQ(rows[0].margin, 0.5);
  EXPECT_EQ(marked(rows[0]), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\n");
  EXPECT_EQ(rows[0].num_trained_tokens, 4u);
  EXPECT_EQ(rows[1].what, "rejected");
  EXPECT_EQ(marked(rows[1]), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[no no<|im_end|>]\n");
  EXPECT_FALSE(rows[1].is_scored);
}

TEST_F(PreviewOfUnits, SayWhyAPairIsNotUsed) {
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_PAIRS, R"({"prompt":"q","chosen":"same","rejected":"same"})");
  std::vector<PreviewRow> rows = shown();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_FALSE(rows[0].drop_reason.empty());
  EXPECT_EQ(rows[0].drop_reason, rows[1].drop_reason);
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_PAIRS, R"({"prompt":"q","chosen":"a","rejected":"b"})");
  data.seq_len = 40;
  rows = shown();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(contains(rows[1].drop_reason, "tokens, train.seq_len is 40")) << "both answers share a row";
}

TEST_F(PreviewOfUnits, MarkTheTokenThatIsScored) {
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_PAIRS, R"({"prompt":"q","chosen":"a","rejected":"b"})");
  data.sequences->scores = true;
  for (const PreviewRow& row : shown()) {
    EXPECT_TRUE(row.is_scored);
    EXPECT_EQ(row.num_trained_tokens, 1u);
    ASSERT_EQ(row.pieces.back().state, TokenState::kTrained);
    EXPECT_EQ(row.pieces.back().ids.size(), 1u);
  }
}

TEST_F(PreviewOfUnits, NameLabelsClassesAndRewards) {
  use(DataFormat::kLabelled, CHASSIS_OBJECTIVE_LABELLED,
      R"({"prompt":"q","completion":"a","label":true})"
      "\n"
      R"({"prompt":"q","completion":"b","label":false})");
  std::vector<PreviewRow> rows = shown();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].what, "desirable");
  EXPECT_EQ(rows[1].what, "undesirable");
  use(DataFormat::kClassification, CHASSIS_OBJECTIVE_TEXTS, R"({"text":"t","label":"news"})", {"sport", "news"});
  data.sequences->scores = true;
  data.sequences->num_classes = 2;
  rows = shown();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].about, "class 1 (news)");
  EXPECT_EQ(rows[0].targets, (std::vector<double>{1}));
  use(DataFormat::kClassification, CHASSIS_OBJECTIVE_TEXTS, R"({"text":"t","values":[0.5,null]})");
  data.sequences->scores = true;
  data.sequences->num_targets = 2;
  EXPECT_EQ(shown().at(0).about, "targets 0.5, -");
  use(DataFormat::kRollouts, CHASSIS_OBJECTIVE_ROLLOUTS,
      R"({"prompt":"q","completions":[{"text":"a","reward":1},{"text":"bb","reward":-0.5}]})");
  rows = shown();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].what, "answer 2 of 2");
  EXPECT_EQ(rows[1].about, "reward -0.5");
  EXPECT_EQ(marked(rows[1]), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[bb<|im_end|>]\n");
}

std::string as_text(const std::vector<PreviewRow>& rows) {
  std::string text;
  for (const PreviewRow& row : rows) text += fmt::format("{} {} {}; ", row.line, row.what, row.num_tokens);
  return text;
}

TEST_F(PreviewOfUnits, ShowPairsThatAreSplitAsLabelledAnswers) {
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_LABELLED,
      R"({"prompt":"q","chosen":"yes","rejected":"no no"})"
      "\n"
      R"({"prompt":"r","chosen":"same","rejected":"same"})");
  data.train[0].split_pairs = true;
  const std::vector<PreviewRow> rows = shown();
  EXPECT_EQ(as_text(rows), "1 desirable 25; 1 undesirable 27; 2 desirable 26; 2 undesirable 26; ");
  EXPECT_EQ(marked(rows.at(1)), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[no no<|im_end|>]\n");
  EXPECT_TRUE(rows[1].drop_reason.empty());
  EXPECT_EQ(rows.at(3).drop_reason, "both answers are equal");
  data.seq_len = 26;
  EXPECT_TRUE(shown().at(0).drop_reason.empty()) << "each answer is a row of its own";
  EXPECT_TRUE(contains(shown().at(1).drop_reason, "27 tokens, train.seq_len is 26"));
  const TargetCounts counts = count_targets(data.train[0], data);
  EXPECT_EQ(counts.num_pairs, 0u);
  EXPECT_EQ(counts.num_split_pairs, 2u);
  EXPECT_EQ(counts.num_desirable, 2u);
  EXPECT_EQ(counts.num_undesirable, 2u);
}

TEST_F(PreviewOfUnits, ShowMismatchesWithTheAnswersOfLaterRows) {
  std::string text;
  for (int i = 0; i < 6; ++i)
    text += fmt::format("{{\"prompt\":\"{}\",\"completion\":\"{}\",\"label\":true}}\n", i / 5, std::string(i + 1, 'x'));
  use(DataFormat::kLabelled, CHASSIS_OBJECTIVE_LABELLED, text);
  data.sequences->mismatches = true;
  const std::vector<PreviewRow> rows = shown();  // the first three rows; only the sixth has another prompt
  EXPECT_EQ(as_text(rows),
            "1 desirable 23; 1 mismatch 28; 2 desirable 24; 2 mismatch 28; 3 desirable 25; 3 mismatch 28; ");
  EXPECT_EQ(marked(rows.at(1)), "<|im_start|>user\n0<|im_end|>\n<|im_start|>assistant\n[xxxxxx<|im_end|>]\n");
  data.seq_len = 51;
  EXPECT_EQ(shown().at(0).drop_reason, "");
  EXPECT_TRUE(contains(shown().at(2).drop_reason, "52 tokens, train.seq_len is 51"));
  data.overflow = Overflow::kTruncateLeftPrompt;
  EXPECT_EQ(as_text({shown().at(2), shown().at(3)}), "2 desirable 23; 2 mismatch 27; ");
  EXPECT_EQ(shown().at(2).drop_reason, "");
}

TEST_F(PreviewOfUnits, TargetsAreCounted) {
  const auto counts = [&] { return count_targets(data.train.at(0), data); };
  use(DataFormat::kPreference, CHASSIS_OBJECTIVE_PAIRS,
      R"({"prompt":"q","chosen":"a","rejected":"b","margin":2})"
      "\n"
      R"({"prompt":"q","chosen":"a","rejected":"b"})"
      "\n"
      R"({"prompt":"q","chosen":"a","rejected":"b","margin":-1})");
  EXPECT_EQ(counts().num_pairs, 3u);
  EXPECT_EQ(counts().margins.count, 2u);
  EXPECT_EQ(counts().margins.min, -1);
  EXPECT_EQ(counts().margins.max, 2);
  EXPECT_EQ(counts().margins.mean(), 0.5);
  use(DataFormat::kLabelled, CHASSIS_OBJECTIVE_LABELLED,
      R"({"prompt":"q","completion":"a","label":true})"
      "\n"
      R"({"prompt":"q","completion":"b","label":0})"
      "\n"
      R"({"prompt":"q","completion":"c","label":1})");
  EXPECT_EQ(counts().num_desirable, 2u);
  EXPECT_EQ(counts().num_undesirable, 1u);
  const std::string classes =
      "{\"text\":\"a\",\"label\":1}\n{\"text\":\"b\",\"label\":1}\n{\"text\":\"c\",\"label\":0}\n";
  use(DataFormat::kClassification, CHASSIS_OBJECTIVE_TEXTS, classes);
  data.sequences->num_classes = 2;
  EXPECT_EQ(counts().classes, (std::map<int64_t, uint64_t>{{0, 1}, {1, 2}}));
  data.sequences->num_classes = 0;
  ASSERT_EQ(counts().values.size(), 1u);
  EXPECT_EQ(counts().values[0].mean(), 2.0 / 3);
  use(DataFormat::kRollouts, CHASSIS_OBJECTIVE_ROLLOUTS,
      R"({"prompt":"q","completions":[{"text":"a","reward":1},{"text":"b","reward":0}]})"
      "\n"
      R"({"prompt":"r","completions":[{"text":"a","reward":1},{"text":"b","reward":1}]})");
  EXPECT_EQ(counts().num_prompts, 2u);
  EXPECT_EQ(counts().num_equal_rewards, 1u);
  EXPECT_EQ(counts().rewards.count, 4u);
  EXPECT_EQ(counts().rewards.mean(), 0.75);
}

TEST_F(PreviewOfUnits, PartsOfASetAreCountedApart) {
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += fmt::format("{{\"prompt\":\"q{}\",\"completion\":\"a\",\"label\":{}}}\n", i, i % 2);
  use(DataFormat::kLabelled, CHASSIS_OBJECTIVE_LABELLED, rows);
  const auto total = [](const TargetCounts& counts) { return counts.num_desirable + counts.num_undesirable; };
  DataSetConfig rest = data.train.at(0), part = rest;
  part.part_end = rest.part_begin = 0.3;
  const uint64_t in_part = total(count_targets(part, data)), in_rest = total(count_targets(rest, data));
  EXPECT_EQ(in_part + in_rest, 40u);
  EXPECT_GT(in_part, 0u);
  EXPECT_GT(in_rest, in_part);
}

}  // namespace
}  // namespace chassis
