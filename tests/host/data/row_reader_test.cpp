// Cutting text files into rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <vector>

#include "host/data/byte_source.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

using Texts = std::vector<std::string>;

Texts split_texts(const std::string& path, DocumentSplit split, ReadNotes* notes = nullptr) {
  Texts texts;
  for (const RawRow& row : rows_of(path, text_set(path, split), notes)) texts.push_back(row.bytes);
  return texts;
}

std::vector<uint64_t> lines_of_rows(const std::string& path, DocumentSplit split = DocumentSplit::kLine) {
  std::vector<uint64_t> lines;
  for (const RawRow& row : rows_of(path, text_set(path, split))) lines.push_back(row.line);
  return lines;
}

std::string error_in(const TempFolder& folder, const std::string& name, const std::string& text) {
  return error_of([&] { row_texts(folder.write(name, text)); });
}

// The peak memory of this process so far, in KiB.
long peak_memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  }
  return -1;
}

TEST(TextRows, AreLinesParagraphsOrTheFile) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\r\n\n \nthree\n\n");
  EXPECT_EQ(split_texts(path, DocumentSplit::kLine), (Texts{"one", "two", "three"}));
  EXPECT_EQ(split_texts(path, DocumentSplit::kParagraph), (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(split_texts(path, DocumentSplit::kFile), (Texts{"one\ntwo\n\n\nthree"}));
  EXPECT_EQ(rows_of(path, text_set(path))[0].kind, RowKind::kText);
}

TEST(TextRows, CountCarriageReturnsInsideALine) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "one\rtwo\r\nthree\r\n");
  const auto rows = open_rows(path, text_set(path));
  for (RawRow row; rows->next(row);) {
  }
  ASSERT_EQ(rows->notes().changes.size(), 1u);
  EXPECT_EQ(rows->notes().changes.begin()->second, 1u);
}

TEST(TextRows, KnowTheLineWhereTheyStart) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\n\n \nthree\n\n");
  EXPECT_EQ(lines_of_rows(path), (std::vector<uint64_t>{3, 4, 7}));
  EXPECT_EQ(lines_of_rows(path, DocumentSplit::kParagraph), (std::vector<uint64_t>{3, 7}));
}

TEST(TextRows, CountBlankLinesThatAreInNoRow) {
  TempFolder folder;
  const std::string path = folder.write("a.txt", "\n\none\ntwo\n\n \nthree\n\n");
  for (const auto& [split, num_blank] :
       {std::pair{DocumentSplit::kLine, 5u}, {DocumentSplit::kParagraph, 0u}, {DocumentSplit::kFile, 3u}}) {
    ReadNotes notes;
    split_texts(path, split, &notes);
    EXPECT_EQ(notes.num_blank_lines, num_blank) << to_text(split);
  }
}

TEST(TextRows, RefuseADocumentThatIsTooLong) {
  TempFolder folder;
  const std::string path =
      folder.write("a.txt", "first\n\n" + std::string(40 << 20, 'x') + "\n" + std::string(40 << 20, 'y') + "\n");
  const std::string paragraph = error_of([&] { split_texts(path, DocumentSplit::kParagraph); });
  EXPECT_TRUE(contains(paragraph, "a.txt:3"));
  EXPECT_TRUE(contains(paragraph, "64 MiB"));
  EXPECT_TRUE(contains(paragraph, "documents = \"line\""));
  EXPECT_TRUE(contains(error_of([&] { split_texts(path, DocumentSplit::kFile); }), "\"paragraph\" or \"line\""));
  EXPECT_EQ(split_texts(path, DocumentSplit::kLine).size(), 3u);
}

TEST(JsonLineRows, SkipAndCountBlankLines) {
  TempFolder folder;
  ReadNotes notes;
  const std::string path = folder.write("a.jsonl", "\xEF\xBB\xBF{\"text\":\"a\"}\r\n\n{\"text\":\"b\"}");
  EXPECT_EQ(row_texts(path, &notes), (Texts{"{\"text\":\"a\"}", "{\"text\":\"b\"}"}));
  EXPECT_EQ(notes.num_blank_lines, 1u);
  EXPECT_EQ(notes.changes.at("byte order marks at the beginning of files are skipped"), 1u);
  EXPECT_EQ(lines_of_rows(path), (std::vector<uint64_t>{1, 3}));
  EXPECT_EQ(row_texts(folder.write("empty.jsonl", "")), Texts{});
}

TEST(JsonLineRows, RefuseALineOf100MegabytesInBoundedMemory) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  {
    std::ofstream out(path);
    const std::string block(1'000'000, 'x');
    out << "{\"text\":\"a\"}\n{\"text\":\"";
    for (int i = 0; i < 100; ++i) out << block;
    out << "\"}\n";
  }
  const long before = peak_memory_kib();
  const std::string message = error_of([&] { row_texts(path); });
  EXPECT_TRUE(contains(message, "a.jsonl:2"));
  EXPECT_TRUE(contains(message, "95.4 MiB"));
  EXPECT_TRUE(contains(message, "64 MiB"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(peak_memory_kib() - before, 200 << 10);
#endif
}

TEST(JsonLineRows, RefuseALineOfOneByteTooManyWithNumbersThatDiffer) {
  TempFolder folder;
  const std::string path = folder.write("a.jsonl", std::string(kMaxDocumentBytes + 1, 'x'));
  const std::string message = error_of([&] { row_texts(path); });
  EXPECT_TRUE(contains(message, "the line has 67108865 bytes, but a document may have at most 67108864 bytes"));
}

TEST(LineRows, EndWhenTheyAreToldTo) {
  TempFolder folder;
  for (const char* name : {"a.jsonl", "a.csv", "a.json", "a.txt.gz"}) {
    const std::string blank = (std::string(name) == "a.csv" ? "a\n" : "") + std::string(3 << 20, '\n');
    const std::string path = folder.write(name, std::string(name).ends_with(".gz") ? gzip(blank) : blank);
    const auto rows = open_rows(path, text_set(path));
    int num_polls = 0;
    rows->set_poll([&] {
      if (++num_polls == 2) throw Error(ExitCode::kStopped, "enough");
    });
    RawRow row;
    EXPECT_TRUE(contains(error_of([&] { rows->next(row); }), "enough")) << name;
  }
}

TEST(CsvRows, MayHaveManyColumns) {
  TempFolder folder;
  std::string header, fields;
  for (int i = 0; i < 100'000; ++i) {
    header += fmt::format("{}column{}", i == 0 ? "" : ",", i);
    fields += i == 0 ? "x" : ",x";
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(row_texts(folder.write("a.csv", header + "\n" + fields + "\n")).size(), 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // 13 s if all pairs were compared
  const std::string twice = folder.write("b.csv", header + ",column7\n");
  EXPECT_TRUE(contains(error_of([&] { row_texts(twice); }), "\"column7\" twice"));
}

TEST(JsonArrayRows, AreTheElementsOfTheArray) {
  TempFolder folder;
  const std::string path = folder.write("a.json",
                                        "\xEF\xBB\xBF [\n {\"text\": \"],}\\\"\\\\\"},\n\n"
                                        " {\"a\": [1, {\"b\": \"[\"}]}\n,3 ] \n");
  EXPECT_EQ(row_texts(path), (Texts{"{\"text\": \"],}\\\"\\\\\"}", "{\"a\": [1, {\"b\": \"[\"}]}\n", "3 "}));
  EXPECT_EQ(lines_of_rows(path), (std::vector<uint64_t>{2, 4, 5}));
  EXPECT_EQ(row_texts(folder.write("b.json", " [ ] ")), Texts{});
  EXPECT_EQ(row_texts(folder.write("c.json.gz", gzip("[{},{}]"))), (Texts{"{}", "{}"}));
}

TEST(JsonArrayRows, AreReadAcrossBlocks) {
  TempFolder folder;
  Texts rows;
  std::string text = "[";
  for (size_t i = 0; i < 40; ++i) {
    rows.push_back("{\"text\":\"" + std::string(i * 7919 % 200'000, static_cast<char>('a' + i % 26)) + "\\\"\"}");
    text += (i > 0 ? "," : "") + rows.back();
  }
  EXPECT_EQ(row_texts(folder.write("a.json", text + "]")) == rows, true);
}

TEST(JsonArrayRows, NameWhatIsWrongAndWhere) {
  TempFolder folder;
  const std::string object = error_in(folder, "a.json", "\n{\"data\": []}");
  EXPECT_TRUE(contains(object, "a.json:2: the file holds a JSON object, not an array"));
  EXPECT_TRUE(contains(object, ".jsonl"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", ""), "the file is empty"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", " \n "), "the file is empty"));
  const std::string path = folder.write("a.json", "[{}\n{}]");  // without a comma: one row that is not JSON
  EXPECT_TRUE(
      contains(error_of([&] { parse_row(text_set(path), rows_of(path, text_set(path)).at(0).bytes); }), "not JSON"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "[{},\n\n{\"a\": \"x"), "a.json:3: the file ends in the middle"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "[{}"), "the file ends in the middle"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "["), "the file ends, not an element"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "[{},]"), "there is ']', not an element"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "[{}]\nx"), "a.json:2"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "\x01"), "byte 0x01"));
  EXPECT_TRUE(contains(error_in(folder, "a.json", "[\n{\"a\":\n\"caf\xE9\"}]"), "a.json:3:5"));
}

TEST(JsonArrayRows, RefuseAnElementThatIsTooLong) {
  TempFolder folder;
  const std::string message = error_in(folder, "a.json", "[{},\n{\"text\":\"" + std::string(66 << 20, 'x') + "\"}]");
  EXPECT_TRUE(contains(message, "a.json:2"));
  EXPECT_TRUE(contains(message, "64 MiB"));
}

TEST(CsvRows, AreObjectsOfStrings) {
  TempFolder folder;
  const std::string path = folder.write("a.csv",
                                        "text,\"a \"\"b\"\"\"\r\n"
                                        "one,\r\n"
                                        "\"two, \"\"2\"\"\nlines\r\n\",\"\t\"\r\n"
                                        "\r\n"
                                        " three ,3");
  ReadNotes notes;
  EXPECT_EQ(row_texts(path, &notes),
            (Texts{R"({"text":"one","a \"b\"":""})", R"({"text":"two, \"2\"\nlines\r\n","a \"b\"":"\t"})",
                   R"({"text":" three ","a \"b\"":"3"})"}));
  EXPECT_EQ(lines_of_rows(path), (std::vector<uint64_t>{2, 3, 7}));
  EXPECT_EQ(notes.num_blank_lines, 1u);
  EXPECT_EQ(row_texts(folder.write("b.csv.zst", zstd("text\none\n"))), (Texts{R"({"text":"one"})"}));
}

TEST(CsvRows, NameWhatIsWrongAndWhere) {
  TempFolder folder;
  EXPECT_TRUE(contains(error_in(folder, "a.csv", ""), "the file is empty"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a,b,a\n"), "a.csv:1: the first row names column \"a\" twice"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a;b\n1;2\n"), "not separated by commas"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a,b\n1,2\n1\n"), "a.csv:3: the row has 1 fields"));
  EXPECT_TRUE(
      contains(error_in(folder, "a.csv", "a,b\n1,2,3\n"), "a.csv:2: the row has 3 fields, the first row names 2"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a,b\n1,x\"y\"\n"), "a.csv:2:4: a quote inside"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a,b\n\"1\"2,3\n"), "a.csv:2:4: text after a closing quote"));
  EXPECT_TRUE(contains(error_in(folder, "a.csv", "a,b\n1,2\n\"3,4\n5,6\n"), "a.csv:3: a quote opens here"));
  EXPECT_TRUE(contains(
      error_in(folder, "a.csv", "a\n\"" + std::string(40 << 20, 'x') + "\n" + std::string(40 << 20, 'x') + "\""),
      "64 MiB"));
  EXPECT_TRUE(contains(error_in(folder, "cr.csv", "text,x\ra,b\rc,d\r"), "the lines of the file end in CR alone"));
}

TEST(Rows, RefuseWhatIsNotText) {
  TempFolder folder;
  for (const char* name : {"a.txt", "a.jsonl", "a.csv"}) {
    EXPECT_TRUE(contains(error_in(folder, name, "text\ncaf\xE9\n"), std::string(name) + ":2:4: not UTF-8: byte 0xE9"));
    EXPECT_TRUE(
        contains(error_in(folder, name, std::string("text\nab\0c\n", 10)), std::string(name) + ":2:3: a NUL byte"));
  }
  EXPECT_TRUE(contains(error_in(folder, "a.json", std::string("[\n\"\0\"]", 6)), "a.json:2:2: a NUL byte"));
}

TEST(Rows, RefuseFilesThatTheFormatDoesNotHave) {
  TempFolder folder;
  const auto message = [&](DataFormat format, const std::string& name) {
    return error_of([&] { open_rows(folder.write(name, ""), set_of(format)); });
  };
  const std::string parquet = message(DataFormat::kMessages, "a.parquet");
  EXPECT_TRUE(contains(parquet, "a.parquet: no plugin of kind \"rows\" that reads .parquet files"));
  EXPECT_TRUE(contains(parquet, "to_json"));
  EXPECT_TRUE(contains(message(DataFormat::kMessages, "a.txt"), "reads .jsonl or .json files"));
  EXPECT_TRUE(contains(message(DataFormat::kMessages, "a.csv"), "convert it to .jsonl"));
  EXPECT_TRUE(contains(message(DataFormat::kText, "a.bin"), "format = \"tokens\""));
  EXPECT_TRUE(contains(message(DataFormat::kTokens, "a.idx"), "name the .bin file"));
  EXPECT_TRUE(contains(message(DataFormat::kTokens, "a.bin.gz"), ".jsonl, .json or .bin files"));
}

}  // namespace
}  // namespace chassis
