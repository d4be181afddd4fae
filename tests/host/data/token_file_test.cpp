// Reading .bin files of token ids: Megatron's and llm.c's.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

// An index of Megatron.
struct IndexText {
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths{2, 1, 3};
  std::vector<int64_t> pointers{0, 4, 6};
  std::vector<int64_t> bounds{0, 2, 2, 3};

  std::string text() const {
    return std::string("MMIDIDX\0\0", 9) + bytes_of(std::vector<uint64_t>{version}) + static_cast<char>(type) +
           bytes_of(std::vector<uint64_t>{lengths.size(), bounds.size()}) + bytes_of(lengths) + bytes_of(pointers) +
           bytes_of(bounds);
  }
};

const std::vector<uint16_t> kIds{1, 2, 3, 4, 5, 65535};

std::vector<Ids> documents_of(const std::string& path, int64_t vocab_size = 0) {
  const DataSetConfig set = token_set(path);
  const auto parser = make_row_parser(set, vocab_size);
  std::vector<Ids> documents;
  for (const RawRow& row : rows_of(path, set)) {
    EXPECT_EQ(row.kind, RowKind::kTokens);
    EXPECT_EQ(row.line, documents.size() + 1);
    const auto record = std::get<TokensRecord>(parser->parse(row, path));
    EXPECT_TRUE(record.labels.empty());
    documents.push_back(record.ids);
  }
  return documents;
}

struct MegatronRows : testing::Test {
  TempFolder folder;

  std::string write(const IndexText& index, const std::string& data = bytes_of(kIds)) {
    folder.write("a.idx", index.text());
    return folder.write("a.bin", data);
  }
  std::string message(const IndexText& index, const std::string& data = bytes_of(kIds)) {
    return error_of([&] { documents_of(write(index, data)); });
  }
};

TEST_F(MegatronRows, AreDocumentsOfOneOrMoreSequences) {
  EXPECT_EQ(documents_of(write({})), (std::vector<Ids>{{1, 2, 3}, {}, {4, 5, 65535}}));
}

TEST_F(MegatronRows, MayHaveIdsOfAllIntegerTypesAndModes) {
  const std::vector<Ids> wanted{{1, 2, 3}, {}, {4, 5, 6}};
  const auto read = [&](uint8_t type, int64_t width, const std::string& data) {
    IndexText index;
    index.type = type;
    index.pointers = {0, 2 * width, 3 * width};
    return documents_of(write(index, data));
  };
  EXPECT_EQ(read(1, 1, bytes_of(std::vector<uint8_t>{1, 2, 3, 4, 5, 6})), wanted);
  EXPECT_EQ(read(2, 1, bytes_of(std::vector<int8_t>{1, 2, 3, 4, 5, 6})), wanted);
  EXPECT_EQ(read(3, 2, bytes_of(std::vector<int16_t>{1, 2, 3, 4, 5, 6})), wanted);
  EXPECT_EQ(read(4, 4, bytes_of(std::vector<int32_t>{1, 2, 3, 4, 5, 6})), wanted);
  EXPECT_EQ(read(5, 8, bytes_of(std::vector<int64_t>{1, 2, 3, 4, 5, 6})), wanted);
  folder.write("b.idx", IndexText().text() + std::string(3, '\0'));
  EXPECT_EQ(documents_of(folder.write("b.bin", bytes_of(kIds))).size(), 3u);
}

TEST_F(MegatronRows, AreReadAcrossBlocks) {
  IndexText index;
  index.lengths.clear();
  index.pointers.clear();
  index.bounds = {0};
  std::vector<uint16_t> ids;
  std::vector<Ids> wanted;
  for (int i = 0; i < 10'000; ++i) {
    index.pointers.push_back(static_cast<int64_t>(ids.size() * 2));
    wanted.emplace_back(i % 7 == 0 ? 9'000 : i % 7, i % 1000);
    index.lengths.push_back(static_cast<int32_t>(wanted.back().size()));
    ids.insert(ids.end(), wanted.back().begin(), wanted.back().end());
    index.bounds.push_back(i + 1);
  }
  EXPECT_EQ(documents_of(write(index, bytes_of(ids))) == wanted, true);
}

TEST_F(MegatronRows, RefuseFilesOfOtherSizesWithBothNumbers) {
  EXPECT_TRUE(contains(message({}, bytes_of(kIds) + "x"), "a.bin: the file has 13 bytes, but "));
  EXPECT_TRUE(contains(message({}, bytes_of(kIds) + "x"), "a.idx says 12"));
  const std::string text = IndexText().text();
  for (const size_t size : {text.size() - 1, text.size() - 30, size_t{34}}) {
    const std::string path = write({});
    folder.write("a.idx", text.substr(0, size));
    const std::string message = error_of([&] { documents_of(path); });
    EXPECT_TRUE(contains(message, "a.idx: the index has " + std::to_string(size) + " bytes, but 3 sequences"));
    EXPECT_TRUE(contains(message, "take " + std::to_string(text.size())));
  }
  folder.write("a.idx", text.substr(0, 20));
  EXPECT_TRUE(contains(error_of([&] { documents_of(folder.path() + "/a.bin"); }), "has 20 bytes, but its header"));
}

TEST_F(MegatronRows, RefuseAnIndexThatContradictsItself) {
  IndexText index;
  index.version = 2;
  EXPECT_TRUE(contains(message(index), "has version 2, this program reads version 1"));
  for (const auto& [type, text] : {std::pair<uint8_t, const char*>{7, "type 7, floating point"}, {0, "type 0;"}}) {
    index = {};
    index.type = type;
    EXPECT_TRUE(contains(message(index), text));
  }
  index = {};
  index.lengths[1] = -1;
  EXPECT_TRUE(contains(message(index), "sequence 1 has -1 ids"));
  index = {};
  index.pointers[2] = 8;
  EXPECT_TRUE(contains(message(index), "sequence 2 begins at byte 8, but those before it have 6"));
  index = {};
  index.bounds[0] = 1;
  EXPECT_TRUE(contains(message(index), "begins at sequence 1, not at 0"));
  index = {};
  index.bounds[1] = 4;
  EXPECT_TRUE(contains(message(index), "document 1 ends at sequence 4; it begins at 0, and there are 3"));
  index = {};
  index.bounds[3] = 2;
  EXPECT_TRUE(contains(message(index), "the documents have 2 sequences, but the index has 3"));
  index = {};
  index.bounds = {};
  EXPECT_TRUE(contains(message(index), "no document bounds"));
  std::string huge = IndexText().text();
  std::memset(huge.data() + 18, 0xFF, 16);
  const std::string path = write({});
  folder.write("a.idx", huge);
  EXPECT_TRUE(contains(error_of([&] { documents_of(path); }), "take more"));
  folder.write("a.idx", "something else that is as long as a header");
  EXPECT_TRUE(contains(error_of([&] { documents_of(path); }), "not an index of Megatron"));
}

TEST_F(MegatronRows, RefuseIdsThatAreNone) {
  IndexText index;
  index.type = 3;
  EXPECT_TRUE(contains(message(index), "a.bin: the number at byte 10 is -1, not a token id"));
  index.type = 4;
  index.lengths = {3};
  index.pointers = {0};
  index.bounds = {0, 1};
  EXPECT_TRUE(contains(message(index, bytes_of(std::vector<int32_t>{7, -1, 3})), "at byte 4 is -1, not a token id"));
  const std::string path = write({});
  EXPECT_TRUE(contains(error_of([&] { documents_of(path, 5); }), "a.bin:3: token[1] is 5, the vocabulary has 5 ids"));
}

TEST_F(MegatronRows, RefuseADocumentThatIsTooLong) {
  IndexText index;
  index.type = 1;
  index.lengths = {17 << 20};
  index.pointers = {0};
  index.bounds = {0, 1};
  EXPECT_TRUE(contains(message(index, std::string(17 << 20, '\1')), "a.bin:1: the document has 68 MiB"));
}

template <class T>
std::string shard(int32_t magic, int32_t version, const std::vector<T>& ids) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<int32_t>(ids.size());
  return bytes_of(header) + bytes_of(ids);
}

TEST(ShardRows, BeginWithTheIdInFrontOfDocuments) {
  TempFolder folder;
  const std::vector<uint16_t> gpt2{7, 8, 50256, 1, 2, 50256, 50256, 3};
  EXPECT_EQ(documents_of(folder.write("a.bin", shard(20240520, 1, gpt2))),
            (std::vector<Ids>{{7, 8}, {50256, 1, 2}, {50256}, {50256, 3}}));
  const std::vector<uint32_t> llama3{128000, 1, 2, 128000, 127999};
  EXPECT_EQ(documents_of(folder.write("b.bin", shard(20240801, 7, llama3))),
            (std::vector<Ids>{{128000, 1, 2}, {128000, 127999}}));
  EXPECT_EQ(documents_of(folder.write("c.bin", shard<uint16_t>(20240520, 1, {}))), std::vector<Ids>{});
}

TEST(ShardRows, AreReadAcrossBlocks) {
  TempFolder folder;
  std::vector<uint16_t> ids;
  std::vector<Ids> wanted;
  for (int i = 0; i < 30; ++i) {
    wanted.emplace_back(Ids{50256});
    for (int j = 0; j < i * 7919 % 150'000; ++j) wanted.back().push_back(j % 50'000);
    ids.insert(ids.end(), wanted.back().begin(), wanted.back().end());
  }
  EXPECT_EQ(documents_of(folder.write("a.bin", shard(20240520, 1, ids))) == wanted, true);
}

TEST(ShardRows, RefuseOtherFiles) {
  TempFolder folder;
  const auto message = [&](const std::string& bytes) {
    return error_of([&] { documents_of(folder.write("a.bin", bytes)); });
  };
  const std::vector<uint16_t> ids{50256, 1};
  const std::string good = shard(20240520, 1, ids);
  EXPECT_TRUE(contains(message(""), "the file has 0 bytes"));
  EXPECT_TRUE(contains(message(shard(5, 1, ids)), "neither a data set of Megatron"));
  EXPECT_TRUE(contains(message(shard(5, 1, ids)), "begins with 5"));
  EXPECT_TRUE(contains(message(shard(20240520, 2, ids)), "has version 2, this program reads version 1 of GPT-2"));
  EXPECT_TRUE(
      contains(message(good.substr(0, good.size() - 1)), "has 1027 bytes, but its header says 2 ids, which take 1028"));
  EXPECT_TRUE(contains(message(good + "x"), "has 1029 bytes"));
  EXPECT_TRUE(
      contains(message(shard<uint32_t>(20240801, 7, {128000, 0x80000000u})), "the number at byte 1028 is 2147483648"));
  EXPECT_TRUE(
      contains(message(shard(20240520, 1, std::vector<uint16_t>(17 << 20, 1))), "begin with id 50256 of GPT-2"));
}

}  // namespace
}  // namespace chassis
