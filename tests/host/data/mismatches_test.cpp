// Prompts with the answers to others, and how documents with them are written.
#include "host/data/mismatches.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "host/data/document_pipeline.hpp"
#include "host/data/document_writer.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/units.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

Document labelled(const Ids& prompt, const Ids& answer, bool is_good = true) {
  Document document;
  document.ids = prompt;
  document.ids.insert(document.ids.end(), answer.begin(), answer.end());
  document.labels.assign(prompt.size(), kIgnoreLabel);
  document.labels.insert(document.labels.end(), answer.begin(), answer.end());
  document.sequences = {{.length = static_cast<int64_t>(document.ids.size()), .targets = {is_good ? 1.0 : 0.0}}};
  return document;
}

// The prompt p gives the ids {100 + p, 200 + p}, and its n-th document the answer {n}, from 1.
std::vector<Document> with_mismatches(const std::vector<int32_t>& prompts) {
  std::vector<Document> documents;
  const DataSetConfig config = text_set("kto.jsonl");
  Mismatches mismatches(config, [&](Document&& document, size_t file) {
    EXPECT_EQ(file, documents.size());
    documents.push_back(std::move(document));
  });
  for (size_t i = 0; i < prompts.size(); ++i)
    mismatches.add(labelled({100 + prompts[i], 200 + prompts[i]}, {static_cast<int32_t>(i + 1)}), i);
  mismatches.finish();
  return documents;
}

// The answer that each document got in its mismatch.
Ids others_of(const std::vector<int32_t>& prompts) {
  Ids others;
  for (const Document& document : with_mismatches(prompts)) {
    EXPECT_EQ(document.ids[3], document.ids[0]) << "its own prompt";
    EXPECT_EQ(document.ids[4], document.ids[1]);
    others.push_back(document.ids.back());
  }
  return others;
}

TEST(Mismatches, AreTheOwnPromptWithAnAnswerToAnother) {
  const std::vector<Document> documents = with_mismatches({1, 2});
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].ids, (Ids{101, 201, 1, 101, 201, 2}));
  EXPECT_EQ(documents[0].labels, (Ids{-100, -100, 1, -100, -100, 2}));
  EXPECT_EQ(documents[0].sequences,
            (std::vector<SequenceFacts>{{.length = 3, .targets = {1}},
                                        {.role = SequenceRole::kMismatch, .length = 3, .targets = {1}}}));
  EXPECT_EQ(documents[1].ids, (Ids{102, 202, 2, 102, 202, 1}));
}

TEST(Mismatches, TakeTheNextAnswerToAnotherPrompt) {
  EXPECT_EQ(others_of({1, 2, 3}), (Ids{2, 3, 1}));
  EXPECT_EQ(others_of({1, 1, 1, 2, 2, 1}), (Ids{4, 4, 4, 6, 6, 4})) << "the last has the prompt of the first";
  EXPECT_EQ(others_of({1, 2, 1, 1}), (Ids{2, 3, 2, 2}));
  EXPECT_EQ(others_of({1, 2, 2, 3, 3}), (Ids{2, 4, 4, 1, 1}));
}

// A conversation in which an answer of several turns has masked tokens.
TEST(Mismatches, KeepTheLabelsOfTheOtherAnswer) {
  std::vector<Document> documents;
  const DataSetConfig config = text_set("kto.jsonl");
  Mismatches mismatches(config, [&](Document&& document, size_t) { documents.push_back(std::move(document)); });
  Document other = labelled({7, 8, 9}, {3, 4, 5, 6});
  other.labels[4] = kIgnoreLabel;
  mismatches.add(labelled({1}, {2}, false), 0);
  mismatches.add(std::move(other), 0);
  mismatches.finish();
  EXPECT_EQ(documents.at(0).ids, (Ids{1, 2, 1, 3, 4, 5, 6}));
  EXPECT_EQ(documents.at(0).labels, (Ids{-100, 2, -100, 3, -100, 5, 6}));
  EXPECT_EQ(documents.at(0).sequences.at(1),
            (SequenceFacts{.role = SequenceRole::kMismatch, .length = 5, .targets = {0}}));
  EXPECT_EQ(documents.at(1).ids, (Ids{7, 8, 9, 3, 4, 5, 6, 7, 8, 9, 2}));
}

// The prompt p with a good and a bad answer, as a row with a pair that is split.
Document split_pair(int32_t prompt, const Ids& good, const Ids& bad, int32_t other_prompt = 0) {
  Document document = labelled({prompt}, good);
  const Document second = labelled({other_prompt == 0 ? prompt : other_prompt}, bad, false);
  document.ids.insert(document.ids.end(), second.ids.begin(), second.ids.end());
  document.labels.insert(document.labels.end(), second.labels.begin(), second.labels.end());
  document.sequences.push_back(second.sequences[0]);
  document.line = static_cast<uint64_t>(prompt);
  return document;
}

TEST(Mismatches, OfAPairAreTheTwoAnswersOfTheNextRow) {
  std::vector<Document> documents;
  const DataSetConfig config = text_set("pairs.jsonl");
  Mismatches mismatches(config, [&](Document&& document, size_t) { documents.push_back(std::move(document)); });
  mismatches.add(split_pair(1, {11}, {12, 12}), 0);
  mismatches.add(split_pair(1, {13}, {14}), 0);
  EXPECT_TRUE(documents.empty()) << "the answers of both rows are those to one prompt";
  mismatches.add(split_pair(2, {21, 21}, {22}), 0);
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].ids, (Ids{1, 11, 1, 12, 12, 1, 21, 21, 1, 22}));
  EXPECT_EQ(documents[0].labels, (Ids{-100, 11, -100, 12, 12, -100, 21, 21, -100, 22}));
  EXPECT_EQ(documents[1].ids, (Ids{1, 13, 1, 14, 1, 21, 21, 1, 22}));
  mismatches.finish();
  ASSERT_EQ(documents.size(), 3u);
  EXPECT_EQ(documents[2].ids, (Ids{2, 21, 21, 2, 22, 2, 11, 2, 12, 12}));

  std::vector<Document> units = split_answers(std::move(documents[0]));
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].ids, (Ids{1, 11, 1, 21, 21}));
  EXPECT_EQ(units[0].labels, (Ids{-100, 11, -100, 21, 21}));
  EXPECT_EQ(units[0].sequences,
            (std::vector<SequenceFacts>{{.length = 2, .targets = {1}},
                                        {.role = SequenceRole::kMismatch, .length = 3, .targets = {1}}}));
  EXPECT_EQ(units[1].ids, (Ids{1, 12, 12, 1, 22}));
  EXPECT_EQ(units[1].sequences.at(1).targets, std::vector<double>{0});
  EXPECT_EQ(units[1].line, 1u);
}

// The end of a prompt may become other tokens in front of another answer.
TEST(Mismatches, OfAPairAreNeverItsOwnAnswers) {
  const DataSetConfig config = text_set("pairs.jsonl");
  std::vector<Document> documents;
  Mismatches mismatches(config, [&](Document&& document, size_t) { documents.push_back(std::move(document)); });
  mismatches.add(split_pair(1, {11}, {12}, 9), 0);
  mismatches.add(split_pair(9, {13}, {14}), 0);
  EXPECT_TRUE(documents.empty()) << "one of their prompts is the same";
  EXPECT_TRUE(contains(error_of([&] { mismatches.finish(); }), "has only one prompt"));
  mismatches.finish(/*is_sample=*/true);
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0].sequences.size(), 2u) << "the rest of the set may have another prompt";
}

TEST(Mismatches, NeedASecondPrompt) {
  EXPECT_TRUE(with_mismatches({}).empty());
  EXPECT_TRUE(contains(error_of([] { with_mismatches({1}); }), "kto.jsonl has only one prompt, in 1 row that"));
  const std::string message = error_of([] { with_mismatches({1, 1, 1}); });
  EXPECT_TRUE(contains(message, "kto.jsonl has only one prompt, in 3 rows that can be used"));
  EXPECT_TRUE(contains(message, "scores each prompt with the answer to another one"));
}

TEST(Mismatches, HoldABoundedNumberOfTokens) {
  const DataSetConfig config = text_set("kto.jsonl");
  int num_taken = 0;
  Mismatches mismatches(
      config, [&](Document&&, size_t) { ++num_taken; }, 6);
  for (int32_t i = 0; i < 10; ++i) mismatches.add(labelled({1 + i % 2}, {5, 6}), 0);
  EXPECT_EQ(num_taken, 9);
  mismatches.add(labelled({2}, {5, 6}), 0);
  EXPECT_TRUE(contains(error_of([&] {
                         mismatches.add(labelled({2}, {5, 6}), 0);
                       }),
                       "3 rows of kto.jsonl that follow each other have the same prompt, and 9 tokens; the maximum is "
                       "6 tokens"));
}

struct Written {
  TokenStoreFacts facts;
  std::vector<Ids> ids;
};

struct DocumentWriterTest : testing::Test {
  TempFolder folder;
  DataConfig data;
  DataSetConfig set = text_set("kto.jsonl");
  std::vector<std::string> files = {"kto.jsonl"};
  int number = 0;

  DocumentWriterTest() {
    data.supervised = true;
    data.packing = Packing::kBestFit;
    data.overflow = Overflow::kDrop;
    data.seq_len = 8;
    data.sequences = SequenceNeeds{.units = CHASSIS_OBJECTIVE_LABELLED, .mismatches = true, .num_targets = 1};
  }

  Written write(std::vector<Document> documents) {
    const std::string path = folder.path() + "/" + std::to_string(number++);
    std::filesystem::create_directories(path);
    TokenStoreWriter store(path, 4);
    DocumentWriter writer(set, files, &data, store);
    for (Document& document : documents) writer.add(std::move(document), 0);
    writer.finish();
    Written out{store.finish(), {}};
    const TokenStore written(path, out.facts, files);
    for (uint64_t i = 0; i < out.facts.num_documents; ++i) {
      const DocumentSpan span = written.document(i);
      written.read_ids(span.begin, out.ids.emplace_back(span.length));
      EXPECT_EQ(written.sequences(span).size(), data.sequences->mismatches ? 2u : 1u);
    }
    return out;
  }
};

TEST_F(DocumentWriterTest, CutsDocumentsTogetherWithTheirMismatches) {
  std::vector<Document> documents = {labelled({1, 2, 3}, {4}), labelled({5, 6, 7}, {8, 9, 10}), labelled({11}, {12})};
  documents[2].line = 3;
  EXPECT_EQ(write(documents).ids.at(0).size(), 10u) << "the packing drops it";
  data.overflow = Overflow::kTruncateLeftPrompt;
  const Written cut = write(documents);
  ASSERT_EQ(cut.ids.size(), 3u);
  EXPECT_EQ(cut.ids[0], (Ids{2, 3, 4, 2, 3, 8, 9, 10}));
  EXPECT_EQ(cut.ids[1], (Ids{6, 7, 8, 9, 10, 6, 7, 12}));
  EXPECT_EQ(cut.ids[2], (Ids{11, 12, 11, 4}));
  EXPECT_EQ(cut.facts.notes.changes.at("rows longer than train.seq_len are cut"), 2u);
  data.seq_len = 5;
  const Written dropped = write(documents);
  EXPECT_EQ(dropped.ids, (std::vector<Ids>{{11, 12, 11, 4}}));
  EXPECT_EQ(dropped.facts.dropped.at("longer than train.seq_len without its prompt"), 2u);
  EXPECT_EQ(dropped.facts.first_dropped.size(), 2u);
}

TEST_F(DocumentWriterTest, DividesPairsIntoLabelledAnswers) {
  const std::vector<Document> pairs = {split_pair(1, {11}, {12, 12}), split_pair(2, {21}, {22})};
  EXPECT_EQ(write(pairs).ids,
            (std::vector<Ids>{{1, 11, 1, 21}, {1, 12, 12, 1, 22}, {2, 21, 2, 11}, {2, 22, 2, 12, 12}}));
  EXPECT_EQ(write(pairs).facts.notes.changes.size(), 0u) << "there are good and bad answers";
  data.sequences->mismatches = false;
  EXPECT_EQ(write(pairs).ids, (std::vector<Ids>{{1, 11}, {1, 12, 12}, {2, 21}, {2, 22}}));
  data.overflow = Overflow::kTruncateLeftPrompt;
  data.seq_len = 2;
  const Written cut = write({split_pair(1, {11}, {12, 12})});
  EXPECT_EQ(cut.ids, (std::vector<Ids>{{1, 11}})) << "an answer alone is cut or dropped";
  EXPECT_EQ(cut.facts.dropped.at("longer than train.seq_len without its prompt"), 1u);
}

TEST_F(DocumentWriterTest, NotesASetOfOneClass) {
  const auto changes = [&](bool first, bool second) {
    return write({labelled({1}, {2}, first), labelled({3}, {4}, second)}).facts.notes.changes;
  };
  EXPECT_EQ(changes(true, false).size(), 0u);
  EXPECT_EQ(changes(true, true).at("all answers are good, and none is bad: the objective needs both to compare"), 2u);
  data.sequences->mismatches = false;
  EXPECT_EQ(changes(false, false).at("all answers are bad, and none is good: the objective needs both to compare"), 2u);
  EXPECT_EQ(write({}).facts.notes.changes.size(), 0u);
}

// Makes a labelled document of each row "prompt answer".
class LabelledWorker final : public RowWorker {
 public:
  explicit LabelledWorker(const DataConfig& data) : encoder_(&kTokenizer, encode_options(data)) {}
  Made make(const RawRow& row, const std::string& file, Document& document, std::string& reason) override {
    const size_t space = row.bytes.find(' ');
    ChatRecord chat = chat_of({{"user", row.bytes.substr(0, space)}, {"assistant", row.bytes.substr(space + 1)}});
    chat.first_trained = 1;
    if (encoder_.encode(LabelledRecord{chat, row.line % 2 == 0}, {file, 0, 0}, document)) return Made::kDocument;
    reason = encoder_.drop_reason();
    return Made::kDropped;
  }
  ReadNotes take_notes() override { return {}; }

 private:
  RecordEncoder encoder_;
};

TEST_F(DocumentWriterTest, WritesTheSameForAnyNumberOfWorkers) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "prompt" + std::to_string(i / 3 % 7) + " answer" + std::to_string(i) + "\n";
  files = {folder.write("a.txt", text), folder.write("b.txt", "other last\n")};
  data.chat = chatml_options().chat;
  Json facts;
  for (const int num_workers : {1, 2, 5}) {
    const std::string path = folder.path() + "/" + std::to_string(number++);
    std::filesystem::create_directories(path);
    TokenStoreWriter store(path, 4);
    DocumentWriter writer(set, files, &data, store);
    PipelineOptions options;
    options.open = [&](const std::string& file) { return open_rows(file, set); };
    options.make_worker = [&] { return std::make_unique<LabelledWorker>(data); };
    options.num_workers = num_workers;
    run_document_pipeline(files, options, [&](DocumentChunk&& chunk) {
      for (Document& document : chunk.documents) writer.add(std::move(document), chunk.file);
    });
    writer.finish();
    const TokenStoreFacts now = store.finish();
    ASSERT_EQ(now.num_documents, 3001u);
    const TokenStore written(path, now, files);
    const auto text_of = [&](uint64_t index) {
      Ids ids(written.document(index).length);
      written.read_ids(written.document(index).begin, ids);
      return kTokenizer.decode(ids);
    };
    EXPECT_TRUE(contains(text_of(0), "answer3<|im_end|>"));
    EXPECT_TRUE(contains(text_of(2999), "last<|im_end|>"));
    EXPECT_TRUE(contains(text_of(3000), "answer0<|im_end|>"));
    EXPECT_EQ(written.origin(3000).text(), files[1] + ":1");
    if (num_workers == 1) facts = to_json(now);
    EXPECT_EQ(to_json(now), facts) << num_workers;
  }
}

TEST(Units, KnowWhereTheirPromptsEnd) {
  EXPECT_EQ(prompt_length(Ids{-100, -100, 5, -100}), 2u);
  EXPECT_EQ(prompt_length(Ids{-100, -100}), 2u);
  EXPECT_EQ(prompt_length(Ids{5}), 0u);
}

}  // namespace
}  // namespace chassis
