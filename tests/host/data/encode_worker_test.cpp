// From rows to documents.
#include "host/data/encode_worker.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

using Texts = std::vector<std::string>;

// Documents with special tokens shown as <id>.
Texts documents_of(const std::string& path, const Tokenizer& tokenizer, ReadNotes* notes = nullptr,
                   int64_t vocab_size = 0) {
  const DataSetConfig set = text_set(path);
  const auto worker = make_encode_worker(set, nullptr, &tokenizer, vocab_size);
  Texts texts;
  for (const RawRow& row : rows_of(path, set)) {
    Document document;
    std::string reason;
    if (worker->make(row, path, document, reason) != RowWorker::Made::kDocument) continue;
    std::string text;
    for (int32_t id : document.ids)
      text += id < 256 ? std::string(1, static_cast<char>(id)) : "<" + std::to_string(id) + ">";
    texts.push_back(text);
    EXPECT_TRUE(document.labels.empty());
  }
  if (notes) *notes = worker->take_notes();
  return texts;
}

// Some tokenizers drop unknown text, and this one adds no EOS.
class Dropping final : public ByteTokenizer {
 public:
  Dropping() : ByteTokenizer(-1, -1) {}
  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.assign(text == "two" ? 0 : 1, 'x');
  }
};

TEST(EncodeWorker, CountsRowsWithoutTokens) {
  TempFolder folder;
  ReadNotes notes;
  EXPECT_EQ(documents_of(folder.write("a.txt", "one\ntwo\nthree\n"), Dropping(), &notes), (Texts{"x", "x"}));
  EXPECT_EQ(notes.num_empty_documents, 1u);
  EXPECT_EQ(
      documents_of(folder.write("a.jsonl", "{\"text\":\"\",\"url\":1}\n{\"text\":\"a\"}\n"), ByteTokenizer(), &notes),
      (Texts{"a<256>"}));
  EXPECT_EQ(notes.num_empty_documents, 1u);
  EXPECT_EQ(notes.unused_columns.at("url"), 1u);
}

TEST(EncodeWorker, AddsBosAndEosOnlyIfTheTokenizerHasThemAndTheTextDoesNot) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "one\n");
  EXPECT_EQ(documents_of(path, ByteTokenizer(257, 256)), (Texts{"<257>one<256>"}));
  EXPECT_EQ(documents_of(path, ByteTokenizer(-1, -1)), (Texts{"one"}));
  EXPECT_EQ(documents_of(path, ByteTokenizer('o', 'e')), (Texts{"one"}));
}

TEST(EncodeWorker, NamesTheLineThatATokenizerRefuses) {
  struct Refusing : ByteTokenizer {
    void encode(std::string_view, std::vector<int32_t>&) const override { throw plugin_error("no such word"); }
  };
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\nabc\n");
  EXPECT_TRUE(contains(error_of([&] { documents_of(path, Refusing()); }), "a.txt:2: no such word"));
}

TEST(EncodeWorker, NamesTheLineWhoseIdsExceedTheVocabulary) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "abc\nxyz\n");
  const std::string message = error_of([&] { documents_of(path, ByteTokenizer(-1, -1), nullptr, 100); });
  EXPECT_TRUE(contains(message, "a.txt:2"));
  EXPECT_TRUE(contains(message, "the row needs the token"));
}

}  // namespace
}  // namespace chassis
