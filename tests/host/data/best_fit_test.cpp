#include "host/data/best_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "host/data/packing.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

// Document i has ids i, all of them equal, so that a row shows which documents it holds.
TokenStore numbered_documents(const std::string& folder, const std::vector<uint64_t>& lengths) {
  std::filesystem::create_directories(folder);
  TokenStoreWriter writer(folder, 4);
  for (size_t i = 0; i < lengths.size(); ++i) {
    writer.add({Ids(lengths[i], static_cast<int32_t>(i)), {}, i + 1}, 0);
  }
  return TokenStore(folder, writer.finish(), {"corpus.jsonl"});
}

std::vector<uint64_t> random_lengths(size_t count, uint64_t longest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint64_t> lengths(count);
  for (uint64_t& length : lengths) length = 1 + random() % longest;
  return lengths;
}

RowOptions best_fit(int64_t seq_len, bool shuffle = true) {
  RowOptions options;
  options.packing = Packing::kBestFit;
  options.seq_len = seq_len;
  options.shuffle = shuffle;
  options.seed = 7;
  return options;
}

Batch next_row(const RowSource& source, SetCursor& cursor, int64_t seq_len) {
  Batch batch(1, seq_len, 0, all_batch_fields());
  const RowCounts counts = source.fill(cursor, BatchRow(batch, 0));
  batch.num_tokens = counts.num_tokens;
  batch.num_trained_tokens = counts.num_trained_tokens;
  return batch;
}

TEST(BestFit, PutsEachDocumentWhereItLeavesTheLeastRoom) {
  const std::vector<uint64_t> lengths = {3, 7, 5, 5, 2, 8};
  const PackedRows rows = pack_best_fit(lengths, 10);
  // 8 with 2, 7 with 3, 5 with 5.
  ASSERT_EQ(rows.size(), 3u);
  std::set<std::vector<uint32_t>> found;
  for (size_t r = 0; r < rows.size(); ++r) found.emplace(rows.row(r).begin(), rows.row(r).end());
  EXPECT_EQ(found, (std::set<std::vector<uint32_t>>{{0, 1}, {2, 3}, {4, 5}}));
}

TEST(BestFit, PacksEveryDocumentOnceAndNoRowTooFull) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const uint64_t seq_len = 1 + seed * 3;
    const std::vector<uint64_t> lengths = random_lengths(seed * 20, seq_len, seed);
    const PackedRows rows = pack_best_fit(lengths, seq_len);
    std::vector<uint32_t> seen;
    for (size_t r = 0; r < rows.size(); ++r) {
      uint64_t sum = 0;
      for (const uint32_t document : rows.row(r)) sum += lengths[document];
      EXPECT_LE(sum, seq_len);
      EXPECT_TRUE(std::is_sorted(rows.row(r).begin(), rows.row(r).end()));
      seen.insert(seen.end(), rows.row(r).begin(), rows.row(r).end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<uint32_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0u);
    EXPECT_EQ(seen, all);
    // Two rows that are at most half full would share one.
    size_t num_half_full = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      uint64_t sum = 0;
      for (const uint32_t document : rows.row(r)) sum += lengths[document];
      num_half_full += 2 * sum <= seq_len;
    }
    EXPECT_LE(num_half_full, 1u);
  }
}

// The mix of lengths in the documentation: log-normal with median 300, cut at 2048.
TEST(BestFit, UsesAlmostAllTokensOfARow) {
  std::mt19937 random(1);
  std::lognormal_distribution<double> mix(std::log(300.0), 0.8);
  std::vector<uint64_t> lengths(30'000);
  for (uint64_t& length : lengths) length = std::clamp<uint64_t>(static_cast<uint64_t>(mix(random)), 1, 2048);
  TempFolder folder;
  const RowSource source(numbered_documents(folder.path() + "/s", lengths), best_fit(2048), text_set("a.jsonl"));
  std::printf("best_fit uses %.4f of the tokens of %.0f rows\n", source.utilisation(), source.num_rows());
  EXPECT_GE(source.utilisation(), 0.97);
  EXPECT_LE(source.utilisation(), 1.0);
}

TEST(BestFit, GivesEveryDocumentOncePerPassAndNeverSplitsOne) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const int64_t seq_len = 8 + seed % 5;
    const std::vector<uint64_t> lengths = random_lengths(1 + seed * 17, static_cast<uint64_t>(seq_len), seed);
    TempFolder folder;
    const RowSource source(numbered_documents(folder.path() + "/s", lengths), best_fit(seq_len, seed % 4 != 0),
                           text_set("a.jsonl"));
    SetCursor cursor;
    const auto num_rows = static_cast<uint64_t>(source.num_rows());
    uint64_t num_tokens = 0;
    std::vector<Ids> passes(3);
    for (uint64_t pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(cursor, (SetCursor{pass, 0, 0, pass * num_rows}));
      for (uint64_t r = 0; r < num_rows; ++r) {
        const Batch row = next_row(source, cursor, seq_len);
        num_tokens += row.num_tokens;
        const auto ids = row.values("input_ids"), labels = row.values("labels"), positions = row.values("positions"),
                   numbers = row.values("document_ids");
        for (size_t t = 0; t < ids.size();) {
          if (numbers[t] < 0) {  // padding reaches to the end
            for (; t < ids.size(); ++t) {
              ASSERT_EQ(numbers[t], -1);
              ASSERT_EQ(labels[t], kIgnoreLabel);
            }
            break;
          }
          passes[pass].push_back(ids[t]);
          const size_t length = lengths[static_cast<size_t>(ids[t])];
          ASSERT_LE(t + length, ids.size());
          for (size_t i = 0; i < length; ++i) {
            ASSERT_EQ(ids[t + i], ids[t]);
            ASSERT_EQ(positions[t + i], static_cast<int32_t>(i));
            ASSERT_EQ(numbers[t + i], numbers[t]);
            ASSERT_EQ(labels[t + i], i + 1 < length ? ids[t] : kIgnoreLabel);
          }
          t += length;
        }
      }
      Ids sorted = passes[pass];
      std::sort(sorted.begin(), sorted.end());
      ASSERT_EQ(sorted.size(), lengths.size());
      for (size_t i = 0; i < sorted.size(); ++i) ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
    }
    EXPECT_NEAR(source.utilisation(),
                static_cast<double>(num_tokens) / static_cast<double>(3 * num_rows * static_cast<uint64_t>(seq_len)),
                1e-12);
    if (num_rows > 20) {
      EXPECT_EQ(passes[0] == passes[1], seed % 4 == 0);
    }
  }
}

TEST(BestFit, ContinuesTheSameFromAnyRow) {
  // More than one window.
  const std::vector<uint64_t> lengths = random_lengths(23'000, 10, 3);
  TempFolder folder;
  const auto open = [&](const std::string& name) {
    return RowSource(numbered_documents(folder.path() + "/" + name, lengths), best_fit(32), text_set("a.jsonl"));
  };
  const RowSource source = open("a");
  std::vector<SetCursor> cursors;
  std::vector<Ids> rows;
  SetCursor cursor;
  const auto num_rows = static_cast<uint64_t>(source.num_rows());
  for (uint64_t r = 0; r < num_rows + 100; ++r) {
    cursors.push_back(cursor);
    const auto ids = next_row(source, cursor, 32);
    rows.emplace_back(ids.values("input_ids").begin(), ids.values("input_ids").end());
  }
  const RowSource again = open("b");
  EXPECT_EQ(again.num_rows(), source.num_rows());
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) {
    const size_t at = random() % (rows.size() - 3);
    SetCursor restored = cursors[at];
    again.require_inside(restored);
    for (size_t k = 0; k < 3; ++k) {
      const Batch row = next_row(again, restored, 32);
      ASSERT_EQ(Ids(row.values("input_ids").begin(), row.values("input_ids").end()), rows[at + k]);
      ASSERT_EQ(restored, k + 1 + at < cursors.size() ? cursors[at + k + 1] : cursor);
    }
  }
  EXPECT_TRUE(contains(error_of([&] {
                         again.require_inside({0, num_rows, 0, 0});
                       }),
                       "the saved position is row " + std::to_string(num_rows)));
  EXPECT_TRUE(contains(error_of([&] { again.require_inside({0, 0, 3, 0}); }), "packing \"best_fit\""));
}

TEST(BestFit, FollowsTheOverflowRule) {
  TempFolder folder;
  const auto open = [&](const std::string& name, Overflow overflow, double max_drop_ratio = 1) {
    RowOptions options = best_fit(4);
    options.overflow = overflow;
    options.max_drop_ratio = max_drop_ratio;
    return RowSource(numbered_documents(folder.path() + "/" + name, {2, 5, 1, 6, 4}), options, text_set("a.jsonl"));
  };
  EXPECT_TRUE(contains(error_of([&] { open("a", Overflow::kError); }), "has 5 tokens, seq_len is 4; 2 of 5 documents"));

  const RowSource truncating = open("b", Overflow::kTruncate);
  EXPECT_EQ(truncating.num_rows(), 4);
  EXPECT_DOUBLE_EQ(truncating.utilisation(), 15.0 / 16);
  uint64_t num_truncated = 0, num_dropped = 0;
  SetCursor cursor;
  for (int r = 0; r < 4; ++r) {
    Batch batch(1, 4, 0, all_batch_fields());
    num_truncated += truncating.fill(cursor, BatchRow(batch, 0)).num_truncated_documents;
  }
  EXPECT_EQ(num_truncated, 2u);

  const RowSource dropping = open("c", Overflow::kDrop);
  EXPECT_EQ(dropping.num_rows(), 2);
  EXPECT_DOUBLE_EQ(dropping.utilisation(), 7.0 / 8);
  cursor = {};
  for (int r = 0; r < 2; ++r) {
    Batch batch(1, 4, 0, all_batch_fields());
    num_dropped += dropping.fill(cursor, BatchRow(batch, 0)).num_dropped_documents;
  }
  EXPECT_EQ(num_dropped, 2u);
  EXPECT_EQ(cursor.epoch, 1u);

  const std::string message = error_of([&] { open("d", Overflow::kDrop, 0.05); });
  EXPECT_TRUE(contains(message, "corpus.jsonl:2"));
  EXPECT_TRUE(contains(message, "2 of 5 documents of a.jsonl (40.0 %) are longer than seq_len 4"));
  EXPECT_TRUE(contains(message, "data.max_drop_ratio is 0.05"));
}

}  // namespace
}  // namespace chassis
