#include "host/data/document_reader.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <vector>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using Texts = std::vector<std::string>;

// Documents with special tokens shown as <id>.
Texts documents_of(const DataSetConfig& set, const ByteTokenizer& tokenizer = ByteTokenizer()) {
  Texts texts;
  for (const std::string& file : data_files(set)) {
    const auto reader = open_documents(file, set, &tokenizer, 0);
    for (Document document; reader->next(document);) {
      std::string text;
      for (int32_t id : document.ids)
        text += id < 256 ? std::string(1, static_cast<char>(id)) : "<" + std::to_string(id) + ">";
      texts.push_back(text);
      EXPECT_TRUE(document.labels.empty());
    }
  }
  return texts;
}

TEST(DocumentReader, TakesEveryLineOfATextAsADocument) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "one\n\n  \ntwo\r\n three\n");
  EXPECT_EQ(documents_of(text_set(path)), (Texts{"one<256>", "two<256>", " three<256>"}));
}

TEST(DocumentReader, TakesParagraphsOrTheWholeFile) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\n\n \nthree\n\n");
  EXPECT_EQ(documents_of(text_set(path, DocumentSplit::kParagraph)), (Texts{"one\ntwo<256>", "three<256>"}));
  EXPECT_EQ(documents_of(text_set(path, DocumentSplit::kFile)), (Texts{"one\ntwo\n\n\nthree<256>"}));
}

TEST(DocumentReader, CountsBlankLinesThatAreInNoDocument) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\n\n \nthree\n\n");
  const ByteTokenizer tokenizer;
  for (const auto& [split, num_blank] :
       {std::pair{DocumentSplit::kLine, 5u}, {DocumentSplit::kParagraph, 0u}, {DocumentSplit::kFile, 3u}}) {
    const auto reader = open_documents(path, text_set(path, split), &tokenizer, 0);
    for (Document document; reader->next(document);) {
    }
    EXPECT_EQ(reader->notes().num_blank_lines, num_blank) << to_text(split);
  }
}

// Some tokenizers drop unknown text, and this one adds no EOS.
TEST(DocumentReader, CountsTextsWithoutTokens) {
  class Dropping final : public Tokenizer {
   public:
    void encode(std::string_view text, std::vector<int32_t>& ids) const override {
      ids.assign(text == "two" ? 0 : 1, 7);
    }
    std::string decode(std::span<const int32_t>, bool) const override { return ""; }
    int64_t vocab_size() const override { return 8; }
    int32_t bos_id() const override { return -1; }
    int32_t eos_id() const override { return -1; }
    int32_t pad_id() const override { return -1; }
    std::string fingerprint() const override { return "dropping"; }
  };
  TempFolder folder;
  const Dropping tokenizer;
  const auto reader = open_documents(folder.write("a.txt", "one\ntwo\nthree\n"), text_set("a.txt"), &tokenizer, 0);
  Document document;
  for (const uint64_t line : {1u, 3u}) {
    ASSERT_TRUE(reader->next(document));
    EXPECT_EQ(document.line, line);
  }
  EXPECT_FALSE(reader->next(document));
  EXPECT_EQ(reader->notes().num_empty_documents, 1u);
}

TEST(DocumentReader, KeepsTheLineWhereADocumentStarts) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\n\n \nthree\n\n");
  const ByteTokenizer tokenizer;
  const auto reader = open_documents(path, text_set(path, DocumentSplit::kParagraph), &tokenizer, 0);
  Document document;
  ASSERT_TRUE(reader->next(document));
  EXPECT_EQ(document.line, 3u);
  ASSERT_TRUE(reader->next(document));
  EXPECT_EQ(document.line, 7u);
}

TEST(DocumentReader, AddsBosAndEosOnlyIfTheTokenizerHasThemAndTheTextDoesNot) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "one\n");
  EXPECT_EQ(documents_of(text_set(path), ByteTokenizer(257, 256)), (Texts{"<257>one<256>"}));
  EXPECT_EQ(documents_of(text_set(path), ByteTokenizer(-1, -1)), (Texts{"one"}));
  EXPECT_EQ(documents_of(text_set(path), ByteTokenizer('o', 'e')), (Texts{"one"}));
}

TEST(DocumentReader, ReadsTextFromJsonLines) {
  TempFolder folder;
  const std::string path = folder.write(
      "a.jsonl", "{\"text\": \"one\\ntwo\", \"url\": 1}\n\n{\"url\": 2, \"text\": \"\"}\n{\"text\": \"\\u00e9\"}");
  const DataSetConfig set = text_set(path);
  EXPECT_EQ(documents_of(set), (Texts{"one\ntwo<256>", "\xC3\xA9<256>"}));
  const ByteTokenizer tokenizer;
  const auto reader = open_documents(path, set, &tokenizer, 0);
  for (Document document; reader->next(document);) {
  }
  EXPECT_EQ(reader->notes().num_empty_documents, 1u);
  EXPECT_EQ(reader->notes().unused_columns.at("url"), 2u);
}

TEST(DocumentReader, ReadsTheFilesOfAFolderByName) {
  TempFolder folder;
  folder.write("b.txt", "two\n");
  folder.write("a.txt", "one\n");
  folder.write("c.jsonl", "{\"text\": \"three\"}\n");
  folder.write("notes.md", "ignored\n");
  EXPECT_EQ(documents_of(text_set(folder.path())), (Texts{"one<256>", "two<256>", "three<256>"}));
}

TEST(DocumentReader, RefusesPathsThatItCannotRead) {
  TempFolder folder;
  DataSetConfig set = text_set(folder.path() + "/nowhere.txt");
  set.where = {"run.toml", 12, 1};
  const std::string missing = error_of([&] { data_files(set); });
  EXPECT_TRUE(contains(missing, "run.toml:12:1"));
  EXPECT_TRUE(contains(missing, "data.train.0"));
  EXPECT_TRUE(contains(missing, "no such file"));
  EXPECT_TRUE(contains(error_of([&] { data_files(text_set(folder.write("a.csv", "x"))); }), ".txt or .jsonl"));
  EXPECT_TRUE(contains(error_of([&] { data_files(token_set(folder.write("a.txt", "x"))); }), "reads .jsonl files"));
  std::filesystem::create_directory(folder.path() + "/empty");
  EXPECT_TRUE(contains(error_of([&] { data_files(text_set(folder.path() + "/empty")); }), "the folder has no"));
  EXPECT_TRUE(contains(error_of([&] { open_documents("a.txt", text_set("a.txt"), nullptr, 0); }), "needs a tokenizer"));
}

TEST(DocumentReader, RefusesBrokenLinksAndSpecialFiles) {
  TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/data");
  folder.write("data/a.txt", "one\n");
  const std::string link = folder.path() + "/data/b.txt", pipe = folder.path() + "/pipe.txt";
  ASSERT_EQ(::symlink("nowhere", link.c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { data_files(text_set(folder.path() + "/data")); }), "data/b.txt"));
  std::filesystem::remove(link);
  ASSERT_EQ(::symlink("../elsewhere.txt", link.c_str()), 0);
  folder.write("elsewhere.txt", "two\n");
  EXPECT_EQ(documents_of(text_set(folder.path() + "/data")), (Texts{"one<256>", "two<256>"}));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { data_files(text_set(pipe)); }), "neither a file nor a folder"));
  const std::string zero = folder.path() + "/zero.jsonl";
  ASSERT_EQ(::symlink("/dev/zero", zero.c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { data_files(token_set(zero)); }), "neither a file nor a folder"));
}

TEST(DocumentReader, NamesTheLineThatATokenizerRefuses) {
  struct Refusing : ByteTokenizer {
    void encode(std::string_view, std::vector<int32_t>&) const override { throw plugin_error("no such word"); }
  };
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\nabc\n");
  const Refusing tokenizer;
  const auto reader = open_documents(path, text_set(path), &tokenizer, 0);
  Document document;
  EXPECT_TRUE(contains(error_of([&] { reader->next(document); }), "a.txt:2: no such word"));
}

TEST(DocumentReader, NamesTheLineWhoseIdsExceedTheVocabulary) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "abc\nxyz\n");
  const ByteTokenizer tokenizer(-1, -1);
  const auto reader = open_documents(path, text_set(path), &tokenizer, 100);
  Document document;
  ASSERT_TRUE(reader->next(document));
  const std::string message = error_of([&] { reader->next(document); });
  EXPECT_TRUE(contains(message, "a.txt:2"));
  EXPECT_TRUE(contains(message, "id 120, the vocabulary has 100 ids"));
}

TEST(DocumentReader, TakesTokensAsTheyAre) {
  TempFolder folder;
  const std::string path = folder.write("a.jsonl",
                                        "{\"input_ids\": [1, 2, 3], \"attention_mask\": [1, 1, 1]}\n"
                                        "{\"labels\": [-100, -100, 6, 9], \"input_ids\": [4, 5, 6, 7], \"id\": \"x\"}\n"
                                        "{\"input_ids\": []}\n"
                                        "{\"input_ids\": [8], \"labels\": null}\n");
  const auto reader = open_documents(path, token_set(path), nullptr, 10);
  using Ids = std::vector<int32_t>;
  Document document;
  ASSERT_TRUE(reader->next(document));
  EXPECT_EQ(document.ids, (Ids{1, 2, 3}));
  EXPECT_TRUE(document.labels.empty());
  ASSERT_TRUE(reader->next(document));
  EXPECT_EQ(document.ids, (Ids{4, 5, 6, 7}));
  EXPECT_EQ(document.labels, (Ids{-100, -100, 6, 9}));
  ASSERT_TRUE(reader->next(document));
  EXPECT_EQ(document.ids, (Ids{8}));
  EXPECT_TRUE(document.labels.empty());
  EXPECT_FALSE(reader->next(document));
  EXPECT_EQ(reader->notes().num_empty_documents, 1u);
  EXPECT_EQ(reader->notes().unused_columns.at("id"), 1u);
}

struct BadRow {
  const char* row;
  const char* message;
};

class DocumentReaderBadRow : public testing::TestWithParam<BadRow> {};

TEST_P(DocumentReaderBadRow, IsRefusedWithItsLine) {
  TempFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"input_ids\": [1]}\n" + std::string(GetParam().row) + "\n");
  const auto reader = open_documents(path, token_set(path), nullptr, 10);
  Document document;
  ASSERT_TRUE(reader->next(document));
  const std::string message = error_of([&] { reader->next(document); });
  EXPECT_TRUE(contains(message, "a.jsonl:2"));
  EXPECT_TRUE(contains(message, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Rows, DocumentReaderBadRow,
    testing::Values(BadRow{"{\"input_ids\": [1, 2", "not JSON"}, BadRow{"[1, 2]", "not a JSON object"},
                    BadRow{"{\"ids\": [1]}", "\"input_ids\" is missing"},
                    BadRow{"{\"input_ids\": [1], \"input_ids\": [2]}", "occurs twice"},
                    BadRow{"{\"input_ids\": 5}", "\"input_ids\" is not an array"},
                    BadRow{"{\"input_ids\": [1, 2.5]}", "input_ids[1] is 2.5, not an integer"},
                    BadRow{"{\"input_ids\": [\"a\"]}", "not an integer"},
                    BadRow{"{\"input_ids\": [99999999999999999999]}", "not JSON"},
                    BadRow{"{\"input_ids\": [1, 10]}", "input_ids[1] is 10, the vocabulary has 10 ids"},
                    BadRow{"{\"input_ids\": [-1]}", "input_ids[0] is -1, the vocabulary has 10 ids"},
                    BadRow{"{\"input_ids\": [-100]}", "input_ids[0] is -100"},
                    BadRow{"{\"input_ids\": [1, 2], \"labels\": [1]}", "\"labels\" has 1 entries, \"input_ids\" has 2"},
                    BadRow{"{\"input_ids\": [1], \"labels\": [-1]}", "labels[0] is -1"},
                    BadRow{"{\"input_ids\": [1, 2], \"attention_mask\": [1, 0]}", "attention_mask[1] is 0"},
                    BadRow{"{\"input_ids\": [1, 2], \"attention_mask\": [1]}", "\"attention_mask\" has 1 entries"},
                    BadRow{"{\"input_ids\": [1], \"x\": \"\xff\"}", "not UTF-8"},
                    BadRow{"{\"input_ids\": [1], \"x\": 1e400}", "not JSON"},
                    BadRow{"{\"input_ids\": [\"\\u001b[31merror: gone\"]}", "\\u001b[31merror: gone"},
                    BadRow{"{\"input_ids\": [1], \"input_ids\\n\": 1, \"input_ids\": 2}", "occurs twice"}));

TEST(DocumentReader, RefusesRowsTooDeeplyNested) {
  TempFolder folder;
  const std::string deep(200'000, '[');
  const std::string path = folder.write("a.jsonl", "{\"x\": " + deep + std::string(deep.size(), ']') + "}\n");
  const auto reader = open_documents(path, token_set(path), nullptr, 10);
  Document document;
  EXPECT_TRUE(contains(error_of([&] { reader->next(document); }), "a.jsonl:1: not JSON"));
}

TEST(DocumentReader, ShowsAtMostALineOfAValue) {
  TempFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"input_ids\": [\"" + std::string(2'000'000, 'x') + "\"]}\n");
  const auto reader = open_documents(path, token_set(path), nullptr, 10);
  Document document;
  EXPECT_LT(error_of([&] { reader->next(document); }).size(), 1000u);
}

TEST(DocumentReader, EscapesAndCutsTheNamesOfUnusedColumns) {
  TempFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\": \"a\", \"x\\u001b[2J\\nerror: gone\": 1, \"" +
                                                       std::string(2'000'000, 'y') + "\": 2}\n");
  const ByteTokenizer tokenizer;
  const auto reader = open_documents(path, text_set(path), &tokenizer, 0);
  for (Document document; reader->next(document);) {
  }
  ASSERT_EQ(reader->notes().unused_columns.size(), 2u);
  for (const auto& [name, rows] : reader->notes().unused_columns) {
    EXPECT_LT(name.size(), 300u);
    EXPECT_EQ(name.find_first_of("\x1b\n"), std::string::npos);
  }
}

TEST(DocumentReader, RefusesTextRowsWithoutText) {
  TempFolder folder;
  const ByteTokenizer tokenizer;
  auto message_of = [&](const std::string& row) {
    const std::string path = folder.write("a.jsonl", row);
    const auto reader = open_documents(path, text_set(path), &tokenizer, 0);
    Document document;
    return error_of([&] { reader->next(document); });
  };
  EXPECT_TRUE(contains(message_of("{\"texts\": \"a\"}"), "key \"text\" is missing"));
  EXPECT_TRUE(contains(message_of("{\"text\": 5}"), "\"text\" is not a string"));
  EXPECT_TRUE(contains(message_of("{\"text\": null}"), "\"text\" is not a string"));
}

TEST(DataConfig, RefusesUnknownNames) {
  EXPECT_EQ(packing_from_text("concat_split"), Packing::kConcatSplit);
  EXPECT_EQ(to_text(Overflow::kTruncate), "truncate");
  EXPECT_TRUE(contains(error_of([] { packing_from_text("best_fit"); }), "\"concat_split\", \"none\""));
  EXPECT_TRUE(contains(error_of([] { data_format_from_text("csv"); }), "\"text\", \"tokens\""));
  EXPECT_TRUE(contains(error_of([] { document_split_from_text("page"); }), "\"paragraph\""));
  EXPECT_TRUE(contains(error_of([] { overflow_from_text("wrap"); }), "\"drop\""));
}

}  // namespace
}  // namespace chassis
