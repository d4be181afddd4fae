// A rank reads the tokens of its own rows; those of other ranks are only counted. Bytes are those that pread returns.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <tuple>
#include <vector>

#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "tests/host/data/support.hpp"

namespace {
std::atomic<uint64_t> bytes_read = 0;
}

extern "C" ssize_t pread(int file, void* into, size_t num_bytes, off_t offset) {
  const ssize_t got = ::syscall(SYS_pread64, file, into, num_bytes, offset);
  if (got > 0) bytes_read += static_cast<uint64_t>(got);
  return got;
}
extern "C" ssize_t pread64(int file, void* into, size_t num_bytes, off64_t offset) {
  return ::pread(file, into, num_bytes, offset);
}

namespace chassis {
namespace {

constexpr int64_t kSeqLen = 512, kNumRanks = 8;

struct OwnRows : testing::TestWithParam<std::tuple<Packing, bool>> {
  TempFolder folder;
  DataConfig config;

  OwnRows() {
    const auto [packing, has_labels] = GetParam();
    std::string text;
    for (int i = 0; i < 64; ++i) {
      std::string ids, labels;
      for (int n = 0; n < 100 + i * 37 % 400; ++n) {
        ids += (n ? "," : "") + std::to_string(i + n);
        labels += (n ? "," : "") + std::to_string(n % 3 == 0 ? -100 : i + n);
      }
      text += "{\"input_ids\":[" + ids + "]" + (has_labels ? ",\"labels\":[" + labels + "]" : "") + "}\n";
    }
    config.seq_len = kSeqLen;
    config.packing = packing;
    config.shuffle = true;
    config.prefetch = false;
    config.cache_dir = folder.path() + "/cache";
    config.train = {token_set(folder.write("a.jsonl", text))};
  }
};

TEST_P(OwnRows, AreAllThatARankReadsOfAStep) {
  TrainData all(config, nullptr);
  all.next_step(1, 1);  // best_fit packs its first window
  const Json start = all.save();
  bytes_read = 0;
  const StepData whole = all.next_step(StepShape{1, kNumRanks, 0, 1});
  const uint64_t of_all = bytes_read;
  uint64_t of_ranks = 0;
  for (int64_t rank = 0; rank < kNumRanks; ++rank) {
    TrainData data(config, nullptr);
    data.next_step(1, 1);
    data.restore(start);
    bytes_read = 0;
    const StepData step = data.next_step(StepShape{1, 1, rank, kNumRanks});
    of_ranks += bytes_read;
    ASSERT_EQ(step.micro_batches.size(), 1u);
    const Batch &mine = step.micro_batches[0], &expected = whole.micro_batches[static_cast<size_t>(rank)];
    for (const auto& [name, field] : expected.fields) EXPECT_TRUE(mine.field(name) == field) << name;
    EXPECT_EQ(mine.num_trained_tokens, expected.num_trained_tokens);
    EXPECT_EQ(step.num_tokens, whole.num_tokens);
    EXPECT_EQ(step.num_trained_tokens, whole.num_trained_tokens);
    EXPECT_EQ(data.save(), all.save());
    EXPECT_EQ(data.stats().num_padding, all.stats().num_padding);
  }
  // Each rank reads the positions of the documents of all rows, about 3 per row, and the labels of all rows if they
  // differ from the tokens.
  const auto width = static_cast<uint64_t>(all.sets()[0].store().facts().id_bytes);
  const uint64_t places = kNumRanks * kNumRanks * 4 * 32;
  const uint64_t labels = std::get<1>(GetParam()) ? kNumRanks * whole.num_tokens * width : 0;
  EXPECT_GE(of_all, whole.num_tokens * width);
  EXPECT_LE(of_ranks, of_all + places + labels);
}

TEST_P(OwnRows, AreAllThatARankReadsOfAnEvaluation) {
  EvalData all(config.train[0], config, nullptr), counted(config.train[0], config, nullptr);
  all.next(1), counted.next(1);
  bytes_read = 0;
  std::vector<Batch> batches;
  while (auto batch = all.next(2)) batches.push_back(std::move(*batch));
  const uint64_t of_all = bytes_read;
  bytes_read = 0;
  for (const Batch& expected : batches) {
    const auto batch = counted.skip(2);
    ASSERT_TRUE(batch.has_value());
    EXPECT_TRUE(batch->fields.empty());
    EXPECT_EQ(batch->num_rows, expected.num_rows);
    EXPECT_EQ(batch->num_tokens, expected.num_tokens);
    EXPECT_EQ(batch->num_trained_tokens, expected.num_trained_tokens);
  }
  EXPECT_FALSE(counted.skip(2));
  EXPECT_LE(bytes_read, std::get<1>(GetParam()) ? of_all * 6 / 10 : of_all / 10);
}

INSTANTIATE_TEST_SUITE_P(OfEveryPacking, OwnRows,
                         testing::Combine(testing::Values(Packing::kConcatSplit, Packing::kBestFit, Packing::kNone),
                                          testing::Bool()));

}  // namespace
}  // namespace chassis
