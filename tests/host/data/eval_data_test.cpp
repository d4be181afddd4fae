#include "host/data/eval_data.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace chassis
