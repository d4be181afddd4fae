#include "host/data/eval_data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "host/base/log.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

struct EvalDataTest : testing::Test {
  TempFolder folder;
  DataConfig config;
  DataSetConfig set;

  EvalDataTest() {
    config.seq_len = 4;
    config.cache_dir = folder.path() + "/cache";
    set = token_set(
        folder.write("e.jsonl", "{\"input_ids\":[1,2,3]}\n{\"input_ids\":[4,5,6,7,8,9]}\n{\"input_ids\":[10]}\n"));
  }

  Ids tokens_of(const Batch& batch) {
    Ids tokens;
    for (size_t i = 0; i < batch.values("input_ids").size(); ++i) {
      if (batch.values("document_ids")[i] >= 0) tokens.push_back(batch.values("input_ids")[i]);
    }
    EXPECT_EQ(tokens.size(), batch.num_tokens);
    return tokens;
  }
};

TEST_F(EvalDataTest, CutsBatchesToTheirLongestRowOnEveryRank) {
  config.packing = Packing::kNone;
  config.overflow = Overflow::kTruncate;
  config.length_multiple = 1;
  EvalData data(set, config, nullptr), other(set, config, nullptr);
  std::vector<int64_t> lengths;
  while (const auto batch = data.next(1)) {
    const auto counted = other.skip(1);
    ASSERT_TRUE(counted.has_value());
    EXPECT_EQ(counted->seq_len, batch->seq_len);
    EXPECT_EQ(batch->field("labels").shape(), (std::vector<int64_t>{1, batch->seq_len}));
    const Batch padding = other.padding(*counted);
    EXPECT_EQ(Ids(padding.values("labels").begin(), padding.values("labels").end()),
              Ids(batch->values("labels").size(), -100));
    lengths.push_back(batch->seq_len);
  }
  EXPECT_EQ(lengths, (std::vector<int64_t>{3, 4, 1}));
}

TEST_F(EvalDataTest, GivesEveryTokenOnceInOrder) {
  EvalData data(set, config, nullptr);
  EXPECT_EQ(data.num_rows(), 3u);
  EXPECT_EQ(data.num_tokens(), 10u);
  for (int pass = 0; pass < 2; ++pass) {
    Ids tokens;
    std::vector<int64_t> rows;
    uint64_t trained = 0;
    while (const auto batch = data.next(2)) {
      const Ids here = tokens_of(*batch);
      tokens.insert(tokens.end(), here.begin(), here.end());
      rows.push_back(batch->num_rows);
      trained += batch->num_trained_tokens;
    }
    EXPECT_EQ(tokens, (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    EXPECT_EQ(rows, (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(trained, 7u);
    EXPECT_FALSE(data.next(2));
    data.rewind();
  }
}

TEST_F(EvalDataTest, GivesEveryRankTheSameNumberOfRows) {
  Ids tokens;
  std::vector<std::vector<int64_t>> rows(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    EvalData data(set, config, nullptr);
    while (const auto batch = data.next(1, rank, 2)) {
      const Ids here = tokens_of(*batch);
      tokens.insert(tokens.end(), here.begin(), here.end());
      rows[static_cast<size_t>(rank)].push_back(batch->num_rows);
    }
  }
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_EQ(tokens, (Ids{1, 2, 3, 4, 9, 10, 5, 6, 7, 8}));
}

TEST_F(EvalDataTest, MayBeShorterThanOneSequence) {
  config.seq_len = 100;
  EvalData data(set, config, nullptr);
  EXPECT_EQ(data.num_rows(), 1u);
  EXPECT_EQ(data.next(8)->num_rows, 1);
}

TEST_F(EvalDataTest, CountsDroppedDocumentsInAdvance) {
  config.packing = Packing::kNone;
  config.overflow = Overflow::kDrop;
  config.max_drop_ratio = 0.5;
  log::reset_counted_warnings();
  EvalData data(set, config, nullptr);
  EXPECT_EQ(counted_warnings().at(0).second, 1u);
  Ids tokens;
  while (const auto batch = data.next(2)) {
    const Ids here = tokens_of(*batch);
    tokens.insert(tokens.end(), here.begin(), here.end());
  }
  EXPECT_EQ(tokens, (Ids{1, 2, 3, 10}));
  log::reset_counted_warnings();
}

// Documents of one set, each as its first token.
std::vector<int32_t> documents_of(const DataSetConfig& part, const DataConfig& data) {
  const TokenStore store = prepare_data_set(part, nullptr, {data.cache_dir, 0, {}, {}, true, &data});
  std::vector<int32_t> firsts(store.num_documents());
  for (uint64_t i = 0; i < firsts.size(); ++i) store.read_ids(store.document(i).begin, std::span(&firsts[i], 1));
  std::sort(firsts.begin(), firsts.end());
  return firsts;
}

TEST_F(EvalDataTest, APartOfASetIsDisjointFromTheRestAndBothAreAll) {
  std::string forwards, backwards;
  for (int i = 0; i < 2000; ++i) {
    forwards += "{\"input_ids\":[" + std::to_string(i) + ",1,2]}\n";
    backwards += "{\"id\":7, \"input_ids\": [" + std::to_string(1999 - i) + ", 1, 2]}\n";
  }
  DataSetConfig held_out = token_set(folder.write("all.jsonl", forwards)), rest = held_out;
  held_out.part_end = rest.part_begin = 0.1;
  const std::vector<int32_t> evaluated = documents_of(held_out, config), trained = documents_of(rest, config);
  EXPECT_NEAR(static_cast<double>(evaluated.size()), 200, 50);
  std::vector<int32_t> all;
  std::set_union(evaluated.begin(), evaluated.end(), trained.begin(), trained.end(), std::back_inserter(all));
  EXPECT_EQ(evaluated.size() + trained.size(), 2000u);
  EXPECT_EQ(all.size(), 2000u);
  // Neither the order of the rows nor their other columns matter.
  held_out.path = folder.write("other.jsonl", backwards);
  EXPECT_EQ(documents_of(held_out, config), evaluated);
  // A larger part contains the smaller one.
  held_out.part_end = 0.2;
  const std::vector<int32_t> more = documents_of(held_out, config);
  EXPECT_TRUE(std::includes(more.begin(), more.end(), evaluated.begin(), evaluated.end()));
  log::reset_counted_warnings();
}

TEST_F(EvalDataTest, RefusesAPartWithoutADocument) {
  set.part_end = 1e-9;
  EXPECT_TRUE(contains(error_of([&] { EvalData(set, config, nullptr); }), "none of the 3 rows of"));
}

TEST_F(EvalDataTest, PacksWholeDocuments) {
  config.packing = Packing::kBestFit;
  config.seq_len = 7;
  EvalData data(set, config, nullptr);
  EXPECT_EQ(data.num_rows(), 2u);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(tokens_of(*data.next(1)), (Ids{1, 2, 3}));
    EXPECT_EQ(tokens_of(*data.next(1)), (Ids{4, 5, 6, 7, 8, 9, 10}));
    EXPECT_FALSE(data.next(1));
    data.rewind();
  }
}

}  // namespace
}  // namespace chassis
