#include "host/data/train_data.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "tests/host/data/support.hpp"
#include "tests/support/cpu_seconds.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

std::string rows_text(int first_id, int num_documents, int longest) {
  std::string text;
  int id = first_id;
  for (int i = 0; i < num_documents; ++i) {
    text += "{\"input_ids\":[";
    for (int n = 0; n < 2 + i * 7 % longest; ++n) text += (n ? "," : "") + std::to_string(id++);
    text += "]}\n";
  }
  return text;
}

struct TrainDataTest : testing::Test {
  TempFolder folder;

  DataConfig config() {
    DataConfig config;
    config.seq_len = 16;
    config.seed = 7;
    config.cache_dir = folder.path() + "/cache";
    return config;
  }
  DataConfig two_sets() {
    DataConfig config = this->config();
    config.train = {token_set(folder.write("a.jsonl", rows_text(0, 100, 30))),
                    token_set(folder.write("b.jsonl", rows_text(100'000, 40, 20)))};
    config.train[1].key = "data.train.1";
    return config;
  }
};

void expect_equal(const StepData& a, const StepData& b) {
  ASSERT_EQ(a.micro_batches.size(), b.micro_batches.size());
  EXPECT_EQ(a.num_tokens, b.num_tokens);
  EXPECT_EQ(a.num_trained_tokens, b.num_trained_tokens);
  for (size_t m = 0; m < a.micro_batches.size(); ++m) {
    for (const auto& [name, field] : a.micro_batches[m].fields) {
      ASSERT_TRUE(field == b.micro_batches[m].field(name)) << name;
    }
  }
}

TEST_F(TrainDataTest, GivesMicroBatchesAndGlobalCounts) {
  TrainData data(two_sets(), nullptr);
  const StepData step = data.next_step(2, 3);
  ASSERT_EQ(step.micro_batches.size(), 3u);
  uint64_t trained = 0;
  for (const Batch& batch : step.micro_batches) {
    EXPECT_EQ(batch.fields.size(), 4u);
    EXPECT_EQ(batch.field("labels").shape(), (std::vector<int64_t>{2, 16}));
    uint64_t here = 0;
    for (int32_t label : batch.values("labels")) here += label != -100;
    EXPECT_EQ(batch.num_trained_tokens, here);
    EXPECT_EQ(batch.num_tokens, 32u);
    trained += here;
  }
  EXPECT_EQ(step.num_trained_tokens, trained);
  EXPECT_EQ(step.num_tokens, 96u);
  EXPECT_EQ(data.stats().num_rows, 6u);
  EXPECT_TRUE(contains(error_of([&] { step.micro_batches[0].field("pixels"); }), "no field \"pixels\""));
}

TEST_F(TrainDataTest, KnowsWhichSetsARunWillNotReach) {
  using Sets = std::vector<size_t>;
  DataConfig config = two_sets();
  config.train[0].weight = 1;
  config.train[1].weight = 0.001;
  TrainData data(config, nullptr);
  uint64_t first = 1;  // the row that is the first of the second set
  while (data.sets_not_reached(first) == Sets{1}) ++first;
  EXPECT_GT(first, 1u);
  EXPECT_EQ(data.sets_not_reached(first), Sets{});
  EXPECT_EQ(data.sets_not_reached(1'000'000'000'000), Sets{});
  for (uint64_t row = 0; row < first; ++row) {
    EXPECT_EQ(data.cursor().sets[1].num_rows, 0u);
    data.next_step(1, 1);
  }
  EXPECT_EQ(data.cursor().sets[1].num_rows, 1u);
  EXPECT_EQ(data.sets_not_reached(0), Sets{});
}

// Document lengths 2 to 31, seq_len 48: the lengths are 16, 32 and 48.
TEST_F(TrainDataTest, CutsMicroBatchesToTheirLongestRow) {
  DataConfig whole = two_sets();
  whole.packing = Packing::kNone;
  whole.seq_len = 48;
  DataConfig cut = whole;
  cut.length_multiple = 16;
  TrainData all(whole, nullptr), shorter(cut, nullptr);
  std::map<int64_t, int> lengths;
  uint64_t positions = 0;
  for (int step = 0; step < 30; ++step) {
    const StepData expected = all.next_step(2, 3), found = shorter.next_step(2, 3);
    EXPECT_EQ(found.num_tokens, expected.num_tokens);
    EXPECT_EQ(found.num_trained_tokens, expected.num_trained_tokens);
    EXPECT_EQ(expected.num_positions, 6u * 48);
    uint64_t here = 0;
    for (size_t m = 0; m < 3; ++m) {
      const Batch &padded = expected.micro_batches[m], &batch = found.micro_batches[m];
      ++lengths[batch.seq_len];
      here += static_cast<uint64_t>(batch.num_rows * batch.seq_len);
      for (const auto& [name, field] : padded.fields) {
        const std::span<const int32_t> whole = field.values<int32_t>(), mine = batch.values(name);
        EXPECT_EQ(batch.field(name).shape(), (std::vector<int64_t>{2, batch.seq_len}));
        const int32_t padding = name == "labels" ? -100 : name == "document_ids" ? -1 : 0;
        int64_t longest = 0;
        for (int64_t row = 0; row < 2; ++row)
          for (int64_t t = 0; t < 48; ++t) {
            const int32_t value = whole[static_cast<size_t>(row * 48 + t)];
            if (t < batch.seq_len) {
              EXPECT_EQ(mine[static_cast<size_t>(row * batch.seq_len + t)], value) << name;
            } else {
              EXPECT_EQ(value, padding) << name;
            }
            if (value != padding) longest = std::max(longest, t + 1);
          }
        if (name == "document_ids") {
          EXPECT_GT(longest, batch.seq_len - 16);
        }
      }
    }
    EXPECT_EQ(found.num_positions, here);
    positions += here;
  }
  EXPECT_EQ(lengths.size(), 2u);
  EXPECT_EQ(shorter.stats().num_tokens + shorter.stats().num_padding, positions);
  EXPECT_EQ(positions + shorter.stats().num_cut, all.stats().num_tokens + all.stats().num_padding);
  EXPECT_EQ(all.stats().num_cut, 0u);
  EXPECT_EQ(shorter.save(), all.save());
}

// Each rank cuts to its own rows, and all ranks know how many positions they compute together.
TEST_F(TrainDataTest, GivesDataRanksTheirOwnLengths) {
  DataConfig config = two_sets();
  config.packing = Packing::kNone;
  config.seq_len = 48;
  config.length_multiple = 16;
  TrainData all(config, nullptr), first(config, nullptr), second(config, nullptr);
  int differ = 0;
  for (int step = 0; step < 20; ++step) {
    const StepData expected = all.next_step(1, 4), a = first.next_step(StepShape{1, 2, 0, 2}),
                   b = second.next_step(StepShape{1, 2, 1, 2});
    for (size_t m = 0; m < 2; ++m) {
      EXPECT_EQ(a.micro_batches[m].seq_len, expected.micro_batches[2 * m].seq_len);
      EXPECT_EQ(b.micro_batches[m].seq_len, expected.micro_batches[2 * m + 1].seq_len);
      differ += a.micro_batches[m].seq_len != b.micro_batches[m].seq_len;
    }
    EXPECT_EQ(a.num_positions, expected.num_positions);
    EXPECT_EQ(b.num_positions, expected.num_positions);
  }
  EXPECT_GT(differ, 0);
}

TEST_F(TrainDataTest, MakesTheFieldsThatTheModelTakesAndCountsWithoutThem) {
  TrainData all(two_sets(), nullptr);
  const StepData expected = all.next_step(2, 3);
  for (const std::vector<std::string>& fields : {std::vector<std::string>{"input_ids", "labels"}, {"positions"}}) {
    DataConfig config = two_sets();
    config.fields = fields;
    TrainData some(config, nullptr);
    const StepData step = some.next_step(2, 3);
    EXPECT_EQ(step.micro_batches[0].fields.size(), fields.size());
    for (const std::string& name : fields)
      EXPECT_TRUE(step.micro_batches[2].field(name) == expected.micro_batches[2].field(name)) << name;
    EXPECT_EQ(step.num_trained_tokens, expected.num_trained_tokens);
    EXPECT_EQ(step.num_tokens, expected.num_tokens);
  }
}

TEST_F(TrainDataTest, ALongDocumentIsReportedOnceAndNotInEveryPass) {
  for (const Overflow overflow : {Overflow::kDrop, Overflow::kTruncate}) {
    DataConfig config = this->config();
    std::string long_row = "{\"input_ids\":[1";
    for (int i = 0; i < 30; ++i) long_row += ",1";
    long_row += "]}\n";
    config.packing = Packing::kBestFit;
    config.overflow = overflow;
    config.max_drop_ratio = 1;
    config.train = {token_set(folder.write("long.jsonl", rows_text(0, 3, 8) + long_row))};
    log::reset_counted_warnings();
    TrainData data(config, nullptr);
    EXPECT_EQ(data.sets()[0].num_long_documents(), 1u);
    EXPECT_EQ(data.sets()[0].num_usable_documents(), overflow == Overflow::kDrop ? 3u : 4u);
    for (int i = 0; i < 12; ++i) data.next_step(1, 1);
    EXPECT_GT(data.epoch(), 2);
    uint64_t times = 0;
    for (const auto& [key, count] : counted_warnings())
      if (key.starts_with("data.dropped ") || key.starts_with("data.truncated ")) times += count;
    EXPECT_EQ(times, 1u);
  }
}

TEST_F(TrainDataTest, ResumesExactlyFromItsCursor) {
  for (const bool prefetch : {false, true}) {
    for (const Packing packing : {Packing::kConcatSplit, Packing::kBestFit, Packing::kNone}) {
      DataConfig config = two_sets();
      config.packing = packing;
      config.overflow = Overflow::kDrop;
      config.max_drop_ratio = 1;
      config.prefetch = prefetch;
      for (const int num_files_before : {0, 1, 13, 60}) {
        TrainData whole(config, nullptr), before(config, nullptr), after(config, nullptr);
        for (int i = 0; i < num_files_before; ++i) {
          whole.next_step(2, 2);
          before.next_step(2, 2);
        }
        const std::string saved = before.save().dump();
        EXPECT_LT(saved.size(), 900u);
        if (num_files_before > 0) after.next_step(1, 1);  // undone by restore
        after.restore(Json::parse(saved));
        EXPECT_EQ(after.save(), before.save());
        for (int i = 0; i < 25; ++i) expect_equal(whole.next_step(2, 2), after.next_step(2, 2));
        EXPECT_EQ(after.cursor(), whole.cursor());
        EXPECT_DOUBLE_EQ(after.epoch(), whole.epoch());
      }
    }
  }
}

TEST_F(TrainDataTest, PrefetchingChangesNothingEvenIfTheShapeOfStepsChanges) {
  DataConfig ahead = two_sets(), plain = two_sets();
  ahead.prefetch = true;
  plain.prefetch = false;
  TrainData a(ahead, nullptr), b(plain, nullptr);
  for (int i = 0; i < 40; ++i) expect_equal(a.next_step(1 + i / 3 % 4, 2), b.next_step(1 + i / 3 % 4, 2));
  EXPECT_EQ(a.stats().num_rows, b.stats().num_rows);
}

TEST_F(TrainDataTest, GivesTheSameRowsToAnyNumberOfRanks) {
  const DataConfig config = two_sets();
  TrainData one(config, nullptr);
  for (const int64_t num_ranks : {2, 4}) {
    TrainData single(config, nullptr);
    std::vector<std::unique_ptr<TrainData>> ranks;
    for (int64_t r = 0; r < num_ranks; ++r) ranks.push_back(std::make_unique<TrainData>(config, nullptr));
    for (int i = 0; i < 5; ++i) {
      const StepData whole = single.next_step(1, 2 * num_ranks);
      Ids expected, dealt;
      for (const Batch& batch : whole.micro_batches) {
        expected.insert(expected.end(), batch.values("labels").begin(), batch.values("labels").end());
      }
      std::vector<StepData> steps;
      for (int64_t r = 0; r < num_ranks; ++r) {
        steps.push_back(ranks[static_cast<size_t>(r)]->next_step(StepShape{1, 2, r, num_ranks}));
        EXPECT_EQ(steps.back().num_trained_tokens, whole.num_trained_tokens);
      }
      for (size_t m = 0; m < 2; ++m) {
        for (const StepData& step : steps) {
          const auto values = step.micro_batches[m].values("labels");
          dealt.insert(dealt.end(), values.begin(), values.end());
        }
      }
      EXPECT_EQ(dealt, expected);
      EXPECT_EQ(ranks[0]->save(), single.save());
    }
  }
}

TEST_F(TrainDataTest, MixesByWeight) {
  DataConfig config = two_sets();
  config.train[0].weight = 1;
  config.train[1].weight = 3;
  TrainData data(config, nullptr);
  std::map<bool, int> rows;
  for (int i = 0; i < 100; ++i) ++rows[data.next_step(1, 1).micro_batches[0].values("input_ids")[0] >= 100'000];
  EXPECT_NEAR(rows[true], 75, 1);
  EXPECT_GT(data.passes()[1], data.passes()[0]);
}

TEST_F(TrainDataTest, WithoutWeightsAnEpochSeesEverySetOnce) {
  const DataConfig config = two_sets();
  TrainData data(config, nullptr);
  const auto num_rows = static_cast<int>(std::floor(data.num_rows_per_epoch()));
  for (int i = 0; i < num_rows; ++i) data.next_step(1, 1);
  EXPECT_NEAR(data.epoch(), 1, 0.02);
  for (double passes : data.passes()) EXPECT_NEAR(passes, 1, 0.12);
}

TEST_F(TrainDataTest, ComputesTheNumberOfStepsInAdvance) {
  DataConfig config = this->config();
  config.packing = Packing::kNone;
  config.train = {token_set(folder.write("a.jsonl", rows_text(0, 100, 10)))};
  const TrainData data(config, nullptr);
  EXPECT_EQ(data.num_rows_per_epoch(), 100);
  EXPECT_EQ(data.num_steps(1, 10), 10u);
  EXPECT_EQ(data.num_steps(3, 10), 30u);
  EXPECT_EQ(data.num_steps(1, 16), 7u);
  EXPECT_EQ(data.num_steps(0.1, 10), 1u);
  EXPECT_EQ(data.num_steps(0.01, 10), 1u);
}

TEST_F(TrainDataTest, ShufflesBySeedAndEpoch) {
  auto first_ids = [&](bool shuffle, uint64_t seed) {
    DataConfig config = two_sets();
    config.train.resize(1);
    config.packing = Packing::kNone;
    config.seq_len = 64;
    config.shuffle = shuffle;
    config.seed = seed;
    TrainData data(config, nullptr);
    Ids ids;
    for (int i = 0; i < 200; ++i) ids.push_back(data.next_step(1, 1).micro_batches[0].values("input_ids")[0]);
    return ids;
  };
  const Ids a = first_ids(true, 1);
  EXPECT_EQ(a, first_ids(true, 1));
  EXPECT_NE(a, first_ids(true, 2));
  Ids first(a.begin(), a.begin() + 100), second(a.begin() + 100, a.end());
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
  Ids in_order = first_ids(false, 1);
  in_order.resize(100);
  EXPECT_EQ(first, in_order);
}

TEST_F(TrainDataTest, IdentityCoversTheTokensAndTheTokenizer) {
  DataConfig config = this->config();
  config.train = {text_set(folder.write("a.txt", "some text that is long enough\n"))};
  const ByteTokenizer tokenizer, other(-1, 256, "other bytes");
  const std::string hash = TrainData(config, &tokenizer).data_hash();
  EXPECT_EQ(hash.size(), 64u);
  config.seed = 9;
  config.seq_len = 8;
  config.train = {text_set(folder.write("copy.txt", "some text that is long enough\n"))};
  EXPECT_EQ(TrainData(config, &tokenizer).data_hash(), hash);
  EXPECT_NE(TrainData(config, &other).data_hash(), hash);
  config.train = {text_set(folder.write("b.txt", "some text that is long enough!\n"))};
  EXPECT_NE(TrainData(config, &tokenizer).data_hash(), hash);
}

TEST_F(TrainDataTest, NamesTheFileThatChangedWithBothHashes) {
  const std::string same = folder.write("same.jsonl", "{\"input_ids\":[1,2,3,4]}\n");
  const auto config_with = [&](const std::string& ids) {
    DataConfig config;
    config.seq_len = 2;
    config.cache_dir = folder.path() + "/cache";
    config.train = {token_set(same), token_set(folder.write("b.jsonl", "{\"input_ids\":[" + ids + "]}\n"))};
    return config;
  };
  TrainData before(config_with("5,6,7"), nullptr);
  const Json saved = before.save();
  TrainData after(config_with("5,6,8"), nullptr);
  const std::string message = error_of([&] { after.restore(saved); });
  const std::string file = folder.path() + "/b.jsonl";
  EXPECT_TRUE(contains(
      message, file + " had content " + before.content()[file].dump() + ", has " + after.content()[file].dump()));
  EXPECT_EQ(message.find("same.jsonl"), std::string::npos) << message;
  EXPECT_NE(before.content()[file], after.content()[file]);
  EXPECT_EQ(content_differences(before.content(), before.content()), "");
}

TEST(DataContent, OfManyFilesIsComparedInLinearTime) {
  const auto seconds_of = [](size_t num_files) {
    std::string text = "{";
    for (size_t i = 0; i < num_files; ++i) text += fmt::format("{}\"{:08}.jsonl\":\"{}\"", i == 0 ? "" : ",", i, i);
    const Json content = parse_json(text + "}", "manifest.json");
    return test::cpu_seconds_of([&] { EXPECT_EQ(content_differences(content, content), ""); });
  };
  const double few = seconds_of(1000), many = seconds_of(64'000);
  EXPECT_LT(many, 500 * few) << "64 times the files; 4000 times the comparisons if each is compared with all";
}

TEST_F(TrainDataTest, RefusesACursorOfAnotherRun) {
  const DataConfig config = two_sets();
  TrainData data(config, nullptr);
  data.next_step(2, 1);
  const Json saved = data.save();

  DataConfig changed = config;
  changed.seed = 8;
  EXPECT_TRUE(contains(error_of([&] { TrainData(changed, nullptr).restore(saved, "step-1"); }),
                       "step-1: the run was started with data seed = 7, now it is 8"));
  changed = config;
  changed.shuffle = false;
  EXPECT_TRUE(contains(error_of([&] { TrainData(changed, nullptr).restore(saved); }), "data shuffle = true"));
  changed = config;
  changed.train.pop_back();
  EXPECT_TRUE(contains(error_of([&] { TrainData(changed, nullptr).restore(saved); }), "other data"));
  changed = config;
  changed.seq_len = 8;  // may change
  TrainData(changed, nullptr).restore(saved);

  Json broken = saved;
  broken["sets"][0]["document"] = 100;
  EXPECT_TRUE(contains(error_of([&] { data.restore(broken); }), "document 100"));
  broken = saved;
  broken["sets"][0]["offset"] = 1000;
  EXPECT_TRUE(contains(error_of([&] { data.restore(broken); }), "token 1000"));
  broken = saved;
  broken["sets"][0].erase("epoch");
  EXPECT_TRUE(contains(error_of([&] { data.restore(broken); }), "\"epoch\" is missing"));
  EXPECT_EQ(data.save(), saved);  // a refused cursor changes nothing
}

TEST_F(TrainDataTest, StopsAtAStepWithoutATrainedToken) {
  std::string text = "{\"input_ids\":[1,2,3,4]}\n";
  for (int i = 0; i < 8; ++i) text += "{\"input_ids\":[1,2,3,4],\"labels\":[-100,-100,-100,-100]}\n";
  DataConfig config = this->config();
  config.train = {token_set(folder.write("a.jsonl", text))};
  config.shuffle = false;
  TrainData data(config, nullptr);
  data.next_step(1, 1);
  EXPECT_TRUE(contains(error_of([&] { data.next_step(1, 1); }),
                       "all labels are masked in this step: none of 16 tokens in 1 rows"));
}

TEST_F(TrainDataTest, CountsTruncatedAndDroppedDocuments) {
  DataConfig config = this->config();
  config.packing = Packing::kNone;
  config.shuffle = false;
  config.train = {token_set(folder.write("a.jsonl", rows_text(0, 100, 30)))};
  config.overflow = Overflow::kTruncate;
  log::reset_counted_warnings();
  TrainData truncating(config, nullptr);
  truncating.next_step(100, 1);
  uint64_t too_long = 0;
  for (int i = 0; i < 100; ++i) too_long += 2 + i * 7 % 30 > 16;
  EXPECT_EQ(truncating.stats().num_truncated_documents, too_long);
  ASSERT_EQ(counted_warnings().size(), 1u);
  EXPECT_EQ(counted_warnings()[0].second, too_long);
  config.overflow = Overflow::kDrop;
  config.max_drop_ratio = 1;
  TrainData dropping(config, nullptr);
  EXPECT_EQ(dropping.num_rows_per_epoch(), 100.0 - static_cast<double>(too_long));
  log::reset_counted_warnings();
}

TEST_F(TrainDataTest, RefusesContradictoryConfigurations) {
  auto message_of = [](const DataConfig& config) { return error_of([&] { TrainData(config, nullptr); }); };
  EXPECT_TRUE(contains(message_of(config()), "no training data"));
  DataConfig no_length = two_sets();
  no_length.seq_len = 0;
  EXPECT_TRUE(contains(message_of(no_length), "seq_len is 0"));
  DataConfig half_weighted = two_sets();
  half_weighted.train[0].weight = 1;
  EXPECT_TRUE(contains(message_of(half_weighted), "data.train.1: has no weight, unlike data.train.0"));
  DataConfig negative = two_sets();
  negative.train[0].weight = 1;
  negative.train[1].weight = -1;
  EXPECT_TRUE(contains(message_of(negative), "weight = -1 is not a positive number"));
}

}  // namespace
}  // namespace chassis
