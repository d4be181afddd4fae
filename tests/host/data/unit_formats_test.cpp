// Files of labelled answers, classes and rollouts, from their rows to batches.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "host/base/log.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

struct UnitFormats : testing::Test {
  TempFolder folder;
  DataConfig data;

  UnitFormats() {
    data.seq_len = 120;
    data.packing = Packing::kBestFit;
    data.overflow = Overflow::kDrop;
    data.supervised = true;
    data.chat = chatml_options().chat;
    data.cache_dir = folder.path() + "/cache";
    data.num_threads = 2;
    log::reset_counted_warnings();
  }
  ~UnitFormats() override { log::reset_counted_warnings(); }

  DataSetConfig set_of(DataFormat format, const std::string& text) {
    DataSetConfig set = text_set(folder.write("rows.jsonl", text));
    set.format = format;
    return set;
  }
  static std::string text_of(const Batch& batch, const BatchSequence& sequence) {
    const auto at = static_cast<size_t>(sequence.row * batch.seq_len + sequence.begin);
    return kTokenizer.decode(batch.values("input_ids").subspan(at, static_cast<size_t>(sequence.facts.length)));
  }
};

TEST_F(UnitFormats, LabelledAnswersHaveMismatches) {
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .mismatches = true, .num_targets = 1};
  std::string text;
  for (int i = 0; i < 6; ++i)
    text += fmt::format(R"({{"prompt":"p{}","completion":"a{}","label":{}}})", i / 2, i, i % 2 == 0) + "\n";
  data.train = {set_of(DataFormat::kLabelled, text)};
  TrainData train(data, &kTokenizer);
  std::vector<std::string> seen;
  while (seen.size() < 6) {
    const StepData step = train.next_step(1, 1);
    const Batch& batch = step.micro_batches[0];
    for (size_t i = 0; i < batch.sequences.size(); i += 2) {
      const BatchSequence &own = batch.sequences[i], &other = batch.sequences[i + 1];
      EXPECT_EQ(own.unit, other.unit);
      EXPECT_EQ(own.facts.role, SequenceRole::kAnswer);
      EXPECT_EQ(other.facts.role, SequenceRole::kMismatch);
      EXPECT_EQ(own.facts.targets, other.facts.targets);
      const std::string texts = text_of(batch, own) + text_of(batch, other);
      std::string short_text;
      for (size_t at = 0; at + 1 < texts.size(); ++at)
        if ((texts[at] == 'p' || texts[at] == 'a') && texts[at + 1] >= '0' && texts[at + 1] <= '9')
          short_text += texts.substr(at, 2);
      seen.push_back(fmt::format("{} {}", short_text, own.facts.targets.at(0)));
    }
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<std::string>{"p0a0p0a2 1", "p0a1p0a2 0", "p1a2p1a4 1", "p1a3p1a4 0", "p2a4p2a0 1",
                                            "p2a5p2a0 0"}));
  EXPECT_TRUE(counted_warnings().empty());
}

TEST_F(UnitFormats, LabelledAnswersOfOneClassAreCountedInEveryRun) {
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .num_targets = 1};
  data.train = {set_of(DataFormat::kLabelled, R"({"prompt":"p","completion":"a","label":true})"
                                              "\n"
                                              R"({"prompt":"p","completion":"b","label":true})"
                                              "\n")};
  for (int run = 0; run < 2; ++run) {
    log::reset_counted_warnings();
    TrainData train(data, &kTokenizer);
    ASSERT_EQ(counted_warnings().size(), 1u) << run;
    EXPECT_TRUE(contains(counted_warnings()[0].first, "all answers are good, and none is bad"));
    EXPECT_EQ(counted_warnings()[0].second, 2u);
  }
  data.sequences->mismatches = true;
  EXPECT_TRUE(contains(error_of([&] { TrainData(data, &kTokenizer); }), "rows.jsonl has only one prompt, in 2 rows"));
}

// No token of a class is predicted, which is an error only if nothing is scored.
TEST_F(UnitFormats, ClassesNeedNoTrainedToken) {
  data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_TEXTS, .num_targets = 1, .num_classes = 3, .scores = true};
  const DataSetConfig set = set_of(DataFormat::kClassification, R"({"text":"good","label":2})"
                                                                "\n"
                                                                R"({"text":"poor","label":0})"
                                                                "\n");
  data.train = {set};
  TrainData train(data, &kTokenizer);
  const StepData step = train.next_step(1, 1);
  EXPECT_EQ(step.num_trained_tokens, 0u);
  EXPECT_EQ(step.num_tokens, 10u);
  EvalData eval(set, data, &kTokenizer);
  const auto batch = eval.next(4);
  ASSERT_EQ(batch->sequences.size(), 2u);
  for (const int32_t label : batch->values("labels")) EXPECT_EQ(label, kIgnoreLabel);
  EXPECT_EQ(batch->sequences[0].facts.targets, std::vector<double>{2});
  EXPECT_EQ(text_of(*batch, batch->sequences[1]), "poor</s>");
  EXPECT_EQ(batch->sequences[1].unit, 1u);
  data.sequences->scores = false;
  EXPECT_TRUE(contains(error_of([&] { TrainData(data, &kTokenizer); }), "all labels of"));
}

}  // namespace
}  // namespace chassis
