#include "host/data/packing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "host/data/document.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

TokenStore store_of(const std::string& folder, const std::vector<Document>& documents) {
  std::filesystem::create_directories(folder);
  TokenStoreWriter writer(folder, 4);
  for (const Document& document : documents) writer.add(document, 0);
  return TokenStore(folder, writer.finish(), {"corpus.jsonl"});
}

std::vector<Document> random_documents(size_t count, size_t longest, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Document> documents;
  int32_t next = 0;  // every token of the corpus has its own id
  for (size_t i = 0; i < count; ++i) {
    Document document;
    document.line = i + 1;
    for (size_t n = 1 + random() % longest; n > 0; --n) document.ids.push_back(next++);
    documents.push_back(document);
  }
  return documents;
}

RowOptions options(int64_t seq_len, Packing packing = Packing::kConcatSplit) {
  RowOptions options;
  options.seq_len = seq_len;
  options.packing = packing;
  return options;
}

struct Row {
  Ids input_ids, labels, positions, document_ids;
  RowCounts counts;
};

Row next_row(const RowSource& source, SetCursor& cursor, int64_t seq_len, int32_t pad_id = 0) {
  Batch batch(1, seq_len, pad_id, all_batch_fields());
  const RowCounts counts = source.fill(cursor, BatchRow(batch, 0));
  const auto values = [&](const char* name) { return Ids(batch.values(name).begin(), batch.values(name).end()); };
  return {values("input_ids"), values("labels"), values("positions"), values("document_ids"), counts};
}

TEST(Packing, ConcatenatesDocumentsAndSplitsThemAtRows) {
  TempFolder folder;
  const RowSource source(
      store_of(folder.path() + "/s", {{{10, 11, 12}, {}, 1}, {{20, 21, 22, 23}, {}, 2}, {{30}, {}, 3}}), options(5),
      text_set("a.txt"));
  SetCursor cursor;
  const Row first = next_row(source, cursor, 5);
  EXPECT_EQ(first.input_ids, (Ids{10, 11, 12, 20, 21}));
  // The last target of the row is the document's next token; a document's last token has none.
  EXPECT_EQ(first.labels, (Ids{11, 12, -100, 21, 22}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 0, 1}));
  EXPECT_EQ(first.document_ids, (Ids{0, 0, 0, 1, 1}));
  EXPECT_EQ(first.counts.num_tokens, 5u);
  EXPECT_EQ(first.counts.num_trained_tokens, 4u);
  EXPECT_EQ(cursor, (SetCursor{0, 1, 2, 1}));
  const Row second = next_row(source, cursor, 5);
  EXPECT_EQ(second.input_ids, (Ids{22, 23, 30, 10, 11}));
  EXPECT_EQ(second.labels, (Ids{23, -100, -100, 11, 12}));
  EXPECT_EQ(second.positions, (Ids{0, 1, 0, 0, 1}));
  EXPECT_EQ(second.document_ids, (Ids{0, 0, 1, 2, 2}));
  EXPECT_EQ(cursor, (SetCursor{1, 0, 2, 2}));
}

// Two values for each patch, as bytes of the column "image".
constexpr std::string_view kPatchDims[] = {"patches", "channels"};
void write_patches(const RowPiece& piece, std::span<std::byte> out) {
  std::ranges::copy(piece.column("image"), out.begin());
}
size_t num_patches(const RowPiece& piece, size_t entry_bytes) { return piece.column("image").size() / entry_bytes; }
constexpr BatchFieldSpec kPatchField{"patches", CHASSIS_DTYPE_F32, kPatchDims, std::nullopt,
                                     true,      write_patches,     num_patches};

std::vector<std::byte> image_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST(Packing, GivesTheColumnsOfADocumentToTheRowWhereItBegins) {
  TempFolder folder;
  const RowSource source(store_of(folder.path() + "/s", {{{1, 2, 3}, {}, 1, {{"image", image_of({1, 2, 3, 4})}}},
                                                         {{4}, {}, 2},
                                                         {{5, 6}, {}, 3, {{"image", image_of({5, 6})}}}}),
                         options(2), text_set("a.jsonl"));
  SetCursor cursor;
  Batch batch(3, 2, 0, {"input_ids"});
  batch.fields.insert_or_assign("patches", HostField(kPatchField, {{"channels", 2}, {"patches", 9}}));
  std::vector<int64_t> num_patches_after;
  for (int64_t row = 0; row < 3; ++row) {
    source.fill(cursor, BatchRow(batch, row));
    num_patches_after.push_back(batch.field("patches").shape()[0]);
  }
  EXPECT_EQ(num_patches_after, (std::vector<int64_t>{2, 2, 3}));
  EXPECT_TRUE(std::ranges::equal(batch.field("patches").values<float>(), std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(std::ranges::equal(batch.values("input_ids"), Ids{1, 2, 3, 4, 5, 6}));
}

TEST(Packing, ShiftsLabelsOnceAndKeepsTheMask) {
  TempFolder folder;
  const RowSource source(store_of(folder.path() + "/s", {{{1, 2, 3, 4}, {-100, -100, 3, 9}, 1}, {{5, 6}, {5, 6}, 2}}),
                         options(6), text_set("a.jsonl"));
  SetCursor cursor;
  const Row row = next_row(source, cursor, 6);
  EXPECT_EQ(row.input_ids, (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(row.labels, (Ids{-100, 3, 9, -100, 6, -100}));
  EXPECT_EQ(row.counts.num_trained_tokens, 3u);
}

// Every token occurs once per epoch, every label is the next token of its own document, and pieces never mix.
TEST(Packing, UsesEveryTokenExactlyOncePerEpoch) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    TempFolder folder;
    const std::vector<Document> documents = random_documents(1 + seed * 3, 40, seed);
    std::map<int32_t, size_t> document_of;
    for (size_t i = 0; i < documents.size(); ++i) {
      for (int32_t id : documents[i].ids) document_of[id] = i;
    }
    const auto num_tokens = static_cast<int64_t>(document_of.size());
    const int64_t seq_len = 1 + static_cast<int64_t>(seed) % 13;
    if (num_tokens < seq_len) continue;
    RowOptions shuffled = options(seq_len);
    shuffled.shuffle = true;
    shuffled.seed = seed;
    const RowSource source(store_of(folder.path() + "/s", documents), shuffled, text_set("a.txt"));
    EXPECT_DOUBLE_EQ(source.num_rows() * static_cast<double>(seq_len), static_cast<double>(num_tokens));

    std::vector<Ids> epochs(1);  // the tokens in the order of training
    SetCursor cursor;
    uint64_t trained = 0;
    while (static_cast<int64_t>(epochs.size()) <= 3) {
      const Row row = next_row(source, cursor, seq_len);
      for (size_t t = 0; t < row.input_ids.size(); ++t) {
        const int32_t id = row.input_ids[t];
        if (static_cast<int64_t>(epochs.back().size()) == num_tokens) epochs.emplace_back();
        epochs.back().push_back(id);
        const Ids& own = documents[document_of.at(id)].ids;
        ASSERT_EQ(row.labels[t], id == own.back() ? kIgnoreLabel : id + 1);
        trained += row.labels[t] != kIgnoreLabel;
        const bool same_piece = t > 0 && id == row.input_ids[t - 1] + 1 && id != own.front();
        ASSERT_EQ(row.positions[t], same_piece ? row.positions[t - 1] + 1 : 0);
        if (t > 0) {
          ASSERT_EQ(row.document_ids[t], row.document_ids[t - 1] + !same_piece);
        }
      }
    }
    for (size_t e = 0; e < 3; ++e) {
      Ids sorted = epochs[e];
      std::sort(sorted.begin(), sorted.end());
      for (int32_t id = 0; id < num_tokens; ++id) ASSERT_EQ(sorted[static_cast<size_t>(id)], id);
    }
    EXPECT_GT(trained + documents.size() * 4, static_cast<uint64_t>(3 * num_tokens));
    if (documents.size() > 10) {
      EXPECT_NE(epochs[0], epochs[1]);
    }
  }
}

TEST(Packing, PadsByPositionEvenIfThePadIdIsTheEos) {
  TempFolder folder;
  const RowSource source(store_of(folder.path() + "/s", {{{1, 2, 9}, {}, 1}, {{9, 9}, {}, 2}}),
                         options(5, Packing::kNone), text_set("a.txt"));
  EXPECT_EQ(source.num_rows(), 2);
  SetCursor cursor;
  const Row first = next_row(source, cursor, 5, 9);
  EXPECT_EQ(first.input_ids, (Ids{1, 2, 9, 9, 9}));
  EXPECT_EQ(first.labels, (Ids{2, 9, -100, -100, -100}));
  EXPECT_EQ(first.positions, (Ids{0, 1, 2, 0, 0}));
  EXPECT_EQ(first.document_ids, (Ids{0, 0, 0, -1, -1}));
  EXPECT_EQ(first.counts.num_tokens, 3u);
  EXPECT_EQ(first.counts.num_trained_tokens, 2u);
  const Row second = next_row(source, cursor, 5, 9);
  EXPECT_EQ(second.labels, (Ids{9, -100, -100, -100, -100}));
  EXPECT_EQ(second.document_ids, (Ids{0, 0, -1, -1, -1}));
  EXPECT_EQ(cursor, (SetCursor{1, 0, 0, 2}));
}

TEST(Packing, FollowsTheOverflowRule) {
  TempFolder folder;
  const std::vector<Document> documents = {
      {{1, 2}, {}, 1}, {{3, 4, 5, 6, 7}, {}, 2}, {{8}, {}, 3}, {{1, 1, 1, 1}, {}, 4}};
  auto source_with = [&](Overflow overflow) {
    std::filesystem::remove_all(folder.path() + "/s");
    RowOptions single = options(3, Packing::kNone);
    single.overflow = overflow;
    return RowSource(store_of(folder.path() + "/s", documents), single, text_set("a.txt"));
  };
  const std::string message = error_of([&] { source_with(Overflow::kError); });
  EXPECT_TRUE(contains(message, "corpus.jsonl:2"));
  EXPECT_TRUE(contains(message, "has 5 tokens, seq_len is 3; 2 of 4 documents"));

  const RowSource truncating = source_with(Overflow::kTruncate);
  SetCursor cursor;
  next_row(truncating, cursor, 3);
  const Row cut = next_row(truncating, cursor, 3);
  EXPECT_EQ(cut.input_ids, (Ids{3, 4, 5}));
  EXPECT_EQ(cut.labels, (Ids{4, 5, -100}));
  EXPECT_EQ(cut.counts.num_truncated_documents, 1u);

  const RowSource dropping = source_with(Overflow::kDrop);
  EXPECT_EQ(dropping.num_rows(), 2);
  cursor = {};
  next_row(dropping, cursor, 3);
  const Row next = next_row(dropping, cursor, 3);
  EXPECT_EQ(next.input_ids, (Ids{8, 0, 0}));
  EXPECT_EQ(next.counts.num_dropped_documents, 1u);
  EXPECT_EQ(next_row(dropping, cursor, 3).counts.num_dropped_documents, 1u);
  EXPECT_EQ(cursor.epoch, 1u);
}

TEST(Packing, RefusesACorpusShorterThanOneSequence) {
  TempFolder folder;
  const std::vector<Document> documents = {{{1, 2, 3}, {}, 1}};
  const std::string message =
      error_of([&] { RowSource(store_of(folder.path() + "/a", documents), options(4), text_set("a.txt")); });
  EXPECT_TRUE(contains(message, "shorter than one sequence: a.txt has 3 tokens, seq_len is 4"));
  // Rows that were skipped or changed may be the cause.
  std::filesystem::create_directories(folder.path() + "/noted");
  TokenStoreWriter writer(folder.path() + "/noted", 4);
  writer.add(documents[0], 0);
  writer.add_notes(
      {.num_empty_documents = 2, .unused_columns = {}, .changes = {{"texts of \"text\" have NUL characters", 3}}});
  writer.add_dropped("no answer", {"a.txt", 9, 0});
  TokenStore noted(folder.path() + "/noted", writer.finish(), {"a.txt"});
  EXPECT_TRUE(contains(error_of([&] { RowSource(std::move(noted), options(4), text_set("a.txt")); }),
                       "seq_len is 4; also noted: rows without a token (2); no answer (1); texts of \"text\" have NUL "
                       "characters (3)"));
  RowOptions drop = options(2, Packing::kNone);
  drop.overflow = Overflow::kDrop;
  EXPECT_TRUE(contains(error_of([&] { RowSource(store_of(folder.path() + "/b", documents), drop, text_set("a.txt")); }),
                       "every document would be dropped"));
}

}  // namespace
}  // namespace chassis
