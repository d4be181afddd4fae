// Sequences of documents in the store, in rows and in batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "host/base/log.hpp"
#include "host/data/eval_data.hpp"
#include "host/data/packing.hpp"
#include "host/data/preview.hpp"
#include "host/data/sequence_bytes.hpp"
#include "host/data/train_data.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

SequenceFacts chosen(int64_t length, double margin = 0) {
  return {.role = SequenceRole::kChosen, .length = length, .margin = margin};
}
SequenceFacts rejected(int64_t length, double margin = 0) {
  return {.role = SequenceRole::kRejected, .length = length, .margin = margin};
}

// Prompt 1 2, answers 3 4 and 5; prompt 6, answers 7 and 8 9 10.
std::vector<Document> two_pairs() {
  Document first{{1, 2, 3, 4, 1, 2, 5}, {-100, -100, 3, 4, -100, -100, 5}, 1};
  first.sequences = {chosen(4, 0.5), rejected(3, 0.5)};
  Document second{{6, 7, 6, 8, 9, 10}, {-100, 7, -100, 8, 9, 10}, 2};
  second.sequences = {chosen(2), rejected(4)};
  return {first, second};
}

TokenStoreFacts write(const std::string& folder, const std::vector<Document>& documents) {
  std::filesystem::create_directories(folder);
  TokenStoreWriter writer(folder, 4);
  for (const Document& document : documents) writer.add(document, 0);
  return writer.finish();
}

TokenStore store_of(const std::string& folder, const std::vector<Document>& documents) {
  return TokenStore(folder, write(folder, documents), {"pairs.jsonl"});
}

RowOptions options(int64_t seq_len, Packing packing) {
  RowOptions options;
  options.seq_len = seq_len;
  options.packing = packing;
  return options;
}

Ids values(const Batch& batch, const char* name) { return Ids(batch.values(name).begin(), batch.values(name).end()); }

// "row:begin+length role unit" of each sequence.
std::vector<std::string> places(const Batch& batch) {
  std::vector<std::string> texts;
  for (const BatchSequence& s : batch.sequences)
    texts.push_back(std::to_string(s.row) + ":" + std::to_string(s.begin) + "+" + std::to_string(s.facts.length) + " " +
                    std::to_string(static_cast<uint32_t>(s.facts.role)) + " " + std::to_string(s.unit));
  return texts;
}
using Places = std::vector<std::string>;

TEST(SequenceBytes, KeepAllFacts) {
  const std::vector<SequenceFacts> facts = {
      {.role = SequenceRole::kMismatch, .length = 7, .targets = {1, -2.5}, .margin = 1e-300, .old_logps = {-1, -2, -3}},
      {.role = SequenceRole::kAnswer, .length = int64_t{1} << 40, .old_logps = {-0.0}},
      {.length = 5, .teacher = {{2, 0, 1}, {7, 9, 7}, {-0.5f, -1e4f, 0}}},
      chosen(1, -3)};
  EXPECT_EQ(sequences_from_bytes(sequence_bytes(facts)), facts);
  EXPECT_EQ(sequences_from_bytes(sequence_bytes({})), std::vector<SequenceFacts>());
  const std::vector<SequenceFacts> missing = {{.length = 1, .targets = {std::nan("")}}};
  EXPECT_TRUE(std::isnan(sequences_from_bytes(sequence_bytes(missing))[0].targets[0]));
}

TEST(SequenceBytes, AreReadOnlyIfTheyAreWhole) {
  const std::vector<SequenceFacts> facts = {{.length = 3, .targets = {1}, .old_logps = {-1, -2}}, chosen(4)};
  const std::vector<std::byte> bytes = sequence_bytes(facts);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_TRUE(contains(error_of([&] { sequences_from_bytes(std::span(bytes).first(size)); }), "end too early"))
        << size;
  std::vector<std::byte> other = bytes;
  other.push_back(std::byte{0});
  EXPECT_TRUE(contains(error_of([&] { sequences_from_bytes(other); }), "bytes after the facts"));
  other = bytes;
  other[0] = std::byte{9};
  EXPECT_TRUE(contains(error_of([&] { sequences_from_bytes(other); }), "have version 9, and this program reads 2"));
  other = bytes;
  other[8] = std::byte{4};
  EXPECT_TRUE(contains(error_of([&] { sequences_from_bytes(other); }), "a sequence has role 4 and 3 tokens"));
}

TEST(SequenceBytes, OfATeacherNeedAsManyEntriesAsItsTokensHave) {
  const std::vector<SequenceFacts> facts = {{.length = 5, .teacher = {{2, 0}, {7}, {-0.5f}}}};
  EXPECT_TRUE(contains(error_of([&] { sequences_from_bytes(sequence_bytes(facts)); }), "entries of a sequence are 1"));
}

TEST(Sequences, OfATeacherFillTheFieldAtTheirLabels) {
  TempFolder folder;
  Document document{.ids = {5, 6, 7, 8}, .labels = {-100, -100, 7, 8}, .line = 1};
  document.sequences = {{.length = 4, .teacher = {{1, 2}, {3, 4, 2}, {-1, -1, -2}}}};
  const RowSource source(store_of(folder.path() + "/s", {document}), options(6, Packing::kNone), text_set("a"));
  SetCursor cursor;
  Batch batch(1, 6, 0, {"input_ids", "labels", "teacher_ids"}, {{"teacher_top_k", 2}});
  source.fill(cursor, BatchRow(batch, 0));
  EXPECT_EQ(values(batch, "labels"), (Ids{-100, 7, 8, -100, -100, -100}));
  EXPECT_EQ(values(batch, "teacher_ids"), (Ids{-1, -1, 3, -1, 4, 2, -1, -1, -1, -1, -1, -1}));
}

TEST(Sequences, TravelWithTheirDocumentInTheStore) {
  TempFolder folder;
  std::vector<Document> documents = two_pairs();
  documents[1].columns["image"] = std::vector<std::byte>(3, std::byte{1});
  const TokenStoreFacts facts = write(folder.path() + "/s", documents);
  EXPECT_EQ(facts.num_trained_tokens, 3u + 4u);
  const TokenStore store(folder.path() + "/s", token_store_facts_from_json(to_json(facts), "m"), {});
  store.verify();
  EXPECT_TRUE(store.has_sequences());
  for (uint64_t i = 0; i < 2; ++i) EXPECT_EQ(store.sequences(store.document(i)), documents[i].sequences);
  EXPECT_EQ(store.columns().read(1).at("image").size(), 3u);
  EXPECT_FALSE(store_of(folder.path() + "/t", {{{1, 2}, {}, 1}}).has_sequences());
}

TEST(Sequences, ArePartOfTheContentHash) {
  TempFolder folder;
  int number = 0;
  const auto hash = [&](const std::vector<Document>& documents) {
    return write(folder.path() + "/" + std::to_string(number++), documents).content_hash;
  };
  std::vector<Document> documents = two_pairs();
  const std::string before = hash(documents);
  EXPECT_EQ(hash(documents), before);
  documents[0].sequences[1].margin = 0.25;
  EXPECT_NE(hash(documents), before);
  documents = two_pairs();
  documents[0].sequences.clear();
  documents[1].sequences.clear();
  EXPECT_NE(hash(documents), before);
}

TEST(Sequences, MustCoverTheirDocument) {
  TempFolder folder;
  std::vector<Document> documents = two_pairs();
  documents[0].sequences[1].length = 2;
  EXPECT_TRUE(
      contains(error_of([&] { write(folder.path() + "/s", documents); }), "sequences are all of their document"));
  documents = two_pairs();
  documents[0].labels[4] = 1;
  EXPECT_TRUE(contains(error_of([&] { write(folder.path() + "/t", documents); }), "has none before it"));
}

TEST(Sequences, OfADamagedStoreAreRefused) {
  TempFolder folder;
  const TokenStore store = store_of(folder.path() + "/s", two_pairs());
  DocumentSpan document = store.document(0);
  ++document.length;
  EXPECT_TRUE(
      contains(error_of([&] { store.sequences(document); }), "document 0: its sequences have 7 tokens, and it has 8"));
}

TEST(Sequences, ArePiecesOfTheirOwnInARow) {
  TempFolder folder;
  const RowSource source(store_of(folder.path() + "/s", two_pairs()), options(16, Packing::kBestFit), text_set("a"));
  SetCursor cursor;
  Batch batch(1, 16, 99, all_batch_fields());
  const RowCounts counts = source.fill(cursor, BatchRow(batch, 0));
  EXPECT_EQ(values(batch, "input_ids"), (Ids{1, 2, 3, 4, 1, 2, 5, 6, 7, 6, 8, 9, 10, 99, 99, 99}));
  EXPECT_EQ(values(batch, "positions"), (Ids{0, 1, 2, 3, 0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0, 0}));
  EXPECT_EQ(values(batch, "document_ids"), (Ids{0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, -1, -1, -1}));
  EXPECT_EQ(values(batch, "labels"), (Ids{-100, 3, 4, -100, -100, 5, -100, 7, -100, 8, 9, 10, -100, -100, -100, -100}));
  EXPECT_EQ(places(batch), (Places{"0:0+4 1 0", "0:4+3 2 0", "0:7+2 1 1", "0:9+4 2 1"}));
  EXPECT_EQ(batch.sequences[1].facts, rejected(3, 0.5));
  EXPECT_EQ(counts.num_tokens, 13u);
  EXPECT_EQ(counts.num_trained_tokens, 7u);
  SetCursor other;
  EXPECT_EQ(source.skip(other).num_trained_tokens, 7u);
  EXPECT_EQ(other, cursor);
  batch.shorten(13);
  EXPECT_EQ(places(batch).size(), 4u);
}

TEST(Sequences, OfOneUnitFillARowWithoutPacking) {
  TempFolder folder;
  const RowSource source(store_of(folder.path() + "/s", two_pairs()), options(8, Packing::kNone), text_set("a"));
  SetCursor cursor;
  Batch batch(3, 8, 0, all_batch_fields());
  for (int64_t row = 0; row < 3; ++row) source.fill(cursor, BatchRow(batch, row));
  EXPECT_EQ(places(batch), (Places{"0:0+4 1 0", "0:4+3 2 0", "1:0+2 1 1", "1:2+4 2 1", "2:0+4 1 2", "2:4+3 2 2"}));
}

TEST(Sequences, AreDroppedOrRefusedAsAWholeUnit) {
  TempFolder folder;
  for (const Packing packing : {Packing::kBestFit, Packing::kNone}) {
    RowOptions six = options(6, packing);
    six.overflow = Overflow::kDrop;
    const RowSource source(store_of(folder.path() + "/s", two_pairs()), six, text_set("a"));
    EXPECT_EQ(source.num_usable_documents(), 1u);
    SetCursor cursor;
    Batch batch(1, 6, 0, all_batch_fields());
    source.fill(cursor, BatchRow(batch, 0));
    EXPECT_EQ(places(batch), (Places{"0:0+2 1 0", "0:2+4 2 0"}));
    six.overflow = Overflow::kError;
    const std::string message =
        error_of([&] { RowSource(store_of(folder.path() + "/t", two_pairs()), six, text_set("a")); });
    EXPECT_TRUE(contains(message, "pairs.jsonl:1: the document has 7 tokens, seq_len is 6"));
    EXPECT_FALSE(contains(message, "concat_split"));
    for (const char* name : {"/s", "/t"}) std::filesystem::remove_all(folder.path() + name);
  }
}

struct PairData : testing::Test {
  TempFolder folder;
  DataConfig data;
  DataSetConfig set;

  PairData() {
    data.seq_len = 80;
    data.packing = Packing::kBestFit;
    data.overflow = Overflow::kDrop;
    data.supervised = true;
    data.chat = chatml_options().chat;
    data.cache_dir = folder.path() + "/cache";
    data.sequences = SequenceNeeds{};
    data.shuffle = false;
    set = text_set(folder.write("pairs.jsonl", rows(7)));
    set.format = DataFormat::kPreference;
    data.train = {set};
    log::reset_counted_warnings();
  }
  ~PairData() override { log::reset_counted_warnings(); }

  static std::string rows(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += R"({"prompt":"q","chosen":")" +
              std::string(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 26)) +
              R"(","rejected":"no","margin":)" + std::to_string(i) + "}\n";
    return text;
  }
  static std::vector<double> margins(const Batch& batch) {
    std::vector<double> margins;
    for (const BatchSequence& sequence : batch.sequences)
      if (sequence.facts.role == SequenceRole::kChosen) margins.push_back(sequence.facts.margin);
    return margins;
  }
  // Units ascend from 0 and have two sequences each, in the order of rows and positions, whose tokens are theirs.
  static void expect_units(const Batch& batch) {
    ASSERT_EQ(batch.sequences.size() % 2, 0u);
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const BatchSequence& s = batch.sequences[i];
      EXPECT_EQ(s.unit, i / 2);
      EXPECT_EQ(s.facts.role, i % 2 == 0 ? SequenceRole::kChosen : SequenceRole::kRejected);
      const auto at = static_cast<size_t>(s.row * batch.seq_len + s.begin),
                 length = static_cast<size_t>(s.facts.length);
      const auto positions = batch.values("positions").subspan(at, length),
                 documents = batch.values("document_ids").subspan(at, length);
      for (size_t t = 0; t < length; ++t) {
        EXPECT_EQ(positions[t], static_cast<int32_t>(t));
        EXPECT_EQ(documents[t], documents[0]);
      }
      if (i > 0 && batch.sequences[i - 1].row == s.row) {
        EXPECT_EQ(batch.sequences[i - 1].begin + batch.sequences[i - 1].facts.length, s.begin);
      } else {
        EXPECT_EQ(s.begin, 0);
      }
    }
  }
};

TEST_F(PairData, GivesEveryRankTheUnitsOfItsRows) {
  data.packing = Packing::kNone;
  TrainData one(data, &kTokenizer), first(data, &kTokenizer), second(data, &kTokenizer);
  for (int i = 0; i < 5; ++i) {
    const StepData whole = one.next_step(2, 2), a = first.next_step({2, 1, 0, 2}), b = second.next_step({2, 1, 1, 2});
    for (const Batch& batch : whole.micro_batches) {
      expect_units(batch);
      EXPECT_EQ(batch.sequences.size(), 4u);
    }
    EXPECT_EQ(margins(a.micro_batches[0]), margins(whole.micro_batches[0]));
    EXPECT_EQ(margins(b.micro_batches[0]), margins(whole.micro_batches[1]));
    EXPECT_EQ(places(b.micro_batches[0]), places(whole.micro_batches[1]));
    EXPECT_EQ(a.num_trained_tokens, whole.num_trained_tokens);
    EXPECT_EQ(b.num_trained_tokens, whole.num_trained_tokens);
  }
}

TEST_F(PairData, PacksSeveralUnitsInARow) {
  data.seq_len = 150;
  data.shuffle = true;
  TrainData train(data, &kTokenizer);
  std::vector<double> seen;
  const auto num_rows = static_cast<int>(train.num_rows_per_epoch());
  EXPECT_LT(num_rows, 4);
  for (int i = 0; i < num_rows; ++i) {
    const StepData step = train.next_step(1, 1);
    expect_units(step.micro_batches[0]);
    for (const double margin : margins(step.micro_batches[0])) seen.push_back(margin);
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<double>{0, 1, 2, 3, 4, 5, 6}));
}

TEST_F(PairData, OfAnEvaluationEndWithAPartialBatch) {
  data.packing = Packing::kNone;
  for (const int64_t num_ranks : {1, 2}) {
    std::vector<std::unique_ptr<EvalData>> ranks;
    for (int64_t r = 0; r < num_ranks; ++r) ranks.push_back(std::make_unique<EvalData>(set, data, &kTokenizer));
    std::vector<double> seen;
    size_t num_sequences_at_end = 0;
    for (bool more = true; more;) {
      num_sequences_at_end = 0;
      for (int64_t r = 0; r < num_ranks; ++r) {
        const auto batch = ranks[static_cast<size_t>(r)]->next(3, r, num_ranks);
        more = batch.has_value();
        if (!more) break;
        expect_units(*batch);
        for (const double margin : margins(*batch)) seen.push_back(margin);
        num_sequences_at_end += batch->sequences.size();
        EXPECT_TRUE(ranks[0]->padding(*batch).sequences.empty());
      }
    }
    std::ranges::sort(seen);
    EXPECT_EQ(seen, (std::vector<double>{0, 1, 2, 3, 4, 5, 6}));
  }
  EvalData eval(set, data, &kTokenizer);
  EXPECT_EQ(eval.next(5)->sequences.size(), 10u);
  EXPECT_EQ(eval.next(5)->sequences.size(), 4u);
  EXPECT_FALSE(eval.next(5));
  eval.rewind();
  EXPECT_TRUE(eval.skip(5)->sequences.empty());
}

TEST_F(PairData, AreTheSameWithAnyNumberOfThreads) {
  set.path = folder.write("many.jsonl", rows(3000));
  Json facts;
  for (const int64_t num_threads : {1, 2, 5}) {
    std::filesystem::remove_all(data.cache_dir);
    data.num_threads = num_threads;
    PrepareOptions options{.cache_dir = data.cache_dir};
    options.data = &data;
    const Json now = to_json(prepare_data_set(set, &kTokenizer, options).facts());
    if (num_threads == 1) facts = now;
    EXPECT_EQ(now, facts) << num_threads;
  }
}

TEST_F(PairData, AreMadeAgainForOtherNeeds) {
  PrepareOptions options{.cache_dir = data.cache_dir};
  options.data = &data;
  int calls = 0;
  options.progress = [&](const PrepareProgress&) { ++calls; };
  prepare_data_set(set, &kTokenizer, options);
  prepare_data_set(set, &kTokenizer, options);
  EXPECT_EQ(calls, 1);
  data.sequences->scores = true;
  prepare_data_set(set, &kTokenizer, options);
  EXPECT_EQ(calls, 2);
}

TEST_F(PairData, AreShownAnswerByAnswerInAPreview) {
  set.path = folder.write("two.jsonl", rows(1) + R"({"prompt":"q","chosen":"no","rejected":"no"})"
                                                 "\n");
  std::vector<std::string> shown;
  preview_rows(set, data, &kTokenizer, {}, [&](const PreviewRow& row) {
    std::string trained;
    for (const PreviewPiece& piece : row.pieces)
      if (piece.state == TokenState::kTrained) trained += piece.text;
    shown.push_back(std::to_string(row.line) + " " + row.what + " " + trained + " " + row.drop_reason);
  });
  EXPECT_EQ(shown.size(), 4u);
  EXPECT_EQ(shown.at(0), "1 chosen a<|im_end|> ");
  EXPECT_EQ(shown.at(1), "1 rejected no<|im_end|> ");
}

TEST_F(PairData, CountWhatWasDropped) {
  set.path = folder.write("bad.jsonl", rows(3) + R"({"prompt":"q","chosen":"no","rejected":"no"})"
                                                 "\n"
                                                 R"({"prompt":"q","chosen":"","rejected":"no"})"
                                                 "\n");
  data.max_drop_ratio = 1;
  EvalData eval(set, data, &kTokenizer);
  EXPECT_EQ(eval.source().store().facts().dropped.at("both answers are equal"), 1u);
  EXPECT_EQ(eval.source().store().facts().dropped.at("an answer is empty"), 1u);
  EXPECT_EQ(eval.source().num_usable_documents(), 3u);
}

}  // namespace
}  // namespace chassis
