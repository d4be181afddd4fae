#include "host/data/token_store.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

using Ids = std::vector<int32_t>;

TokenStoreFacts write(const std::string& folder, int64_t id_bytes, const std::vector<Document>& documents) {
  std::filesystem::create_directories(folder);
  TokenStoreWriter writer(folder, id_bytes);
  for (const Document& document : documents) writer.add(document, 0);
  return writer.finish();
}

Ids ids_of(const TokenStore& store, uint64_t token, size_t count) {
  Ids ids(count);
  store.read_ids(token, ids);
  return ids;
}

Ids labels_of(const TokenStore& store, uint64_t token, size_t count) {
  Ids labels(count);
  store.read_labels(token, labels);
  return labels;
}

TEST(TokenStore, ReadsAnyPieceOfAnyDocument) {
  for (const int64_t id_bytes : {2, 4}) {
    TempFolder folder;
    std::mt19937 random(7);
    std::vector<Document> documents;
    Ids all;
    for (uint64_t i = 0; i < 300; ++i) {
      Document document;
      document.line = i + 1;
      for (size_t n = 1 + random() % 3000; n > 0; --n) document.ids.push_back(static_cast<int32_t>(random() % 60'000));
      all.insert(all.end(), document.ids.begin(), document.ids.end());
      documents.push_back(document);
    }
    const TokenStoreFacts facts = write(folder.path() + "/s", id_bytes, documents);
    EXPECT_EQ(facts.num_tokens, all.size());
    EXPECT_EQ(facts.num_trained_tokens, all.size() - 300);
    EXPECT_FALSE(facts.has_labels);
    EXPECT_EQ(facts.max_id, *std::max_element(all.begin(), all.end()));

    const TokenStore store(folder.path() + "/s", facts, {"a.txt"});
    uint64_t begin = 0;
    for (uint64_t i = 0; i < 300; ++i) {
      const DocumentSpan span = store.document(i);
      EXPECT_EQ(span.begin, begin);
      ASSERT_EQ(span.length, documents[i].ids.size());
      EXPECT_EQ(ids_of(store, begin, span.length), documents[i].ids);
      EXPECT_EQ(store.origin(i).text(), "a.txt:" + std::to_string(i + 1));
      begin += span.length;
    }
    for (int i = 0; i < 200; ++i) {
      const size_t first = random() % all.size(), count = random() % (all.size() - first + 1);
      ASSERT_EQ(ids_of(store, first, count),
                Ids(all.begin() + static_cast<ptrdiff_t>(first), all.begin() + static_cast<ptrdiff_t>(first + count)));
    }
  }
}

TEST(TokenStore, StoresLabelsFromTheFirstThatDiffersOn) {
  for (const int64_t id_bytes : {2, 4}) {
    TempFolder folder;
    const std::vector<Document> documents = {
        {{1, 2, 3}, {}, 1}, {{4, 5}, {4, 5}, 2}, {{6, 7, 8}, {-100, 7, 9}, 3}, {{1}, {}, 4}};
    const TokenStoreFacts facts = write(folder.path() + "/s", id_bytes, documents);
    EXPECT_TRUE(facts.has_labels);
    EXPECT_EQ(facts.num_trained_tokens, 2u + 1u + 2u + 0u);
    EXPECT_EQ(facts.max_id, 9) << "the largest is a label";
    const TokenStore store(folder.path() + "/s", facts, {});
    EXPECT_EQ(ids_of(store, 0, 9), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 1}));
    EXPECT_EQ(labels_of(store, 0, 9), (Ids{1, 2, 3, 4, 5, -100, 7, 9, 1}));
  }
}

TEST(TokenStore, CopiesManyTokensWhenLabelsBeginLate) {
  TempFolder folder;
  Document plain, labelled{{1, 2}, {-100, 2}, 2};
  for (int32_t i = 0; i < 2'000'000; ++i) plain.ids.push_back(i % 50'000);
  const TokenStoreFacts facts = write(folder.path() + "/s", 2, {plain, labelled});
  const TokenStore store(folder.path() + "/s", facts, {});
  EXPECT_EQ(labels_of(store, 0, plain.ids.size()), plain.ids);
  EXPECT_EQ(labels_of(store, plain.ids.size(), 2), (Ids{-100, 2}));
}

TEST(TokenStore, HashesContentAndDocumentBounds) {
  TempFolder folder;
  auto hash = [&, n = 0](const std::vector<Document>& documents, int64_t id_bytes = 2) mutable {
    return write(folder.path() + "/" + std::to_string(n++), id_bytes, documents).content_hash;
  };
  const std::string one = hash({{{1, 2, 3}, {}, 1}});
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(one, hash({{{1, 2, 3}, {1, 2, 3}, 9}}, 4));
  EXPECT_NE(one, hash({{{1, 2, 4}, {}, 1}}));
  EXPECT_NE(one, hash({{{1, 2, 3}, {1, -100, 3}, 1}}));
  EXPECT_NE(one, hash({{{1, 2}, {}, 1}, {{3}, {}, 1}}));
}

TEST(TokenStore, FindsDocumentsLongerThanALimit) {
  TempFolder folder;
  std::vector<Document> documents;
  for (size_t i = 0; i < 10'000; ++i) documents.push_back({Ids(1 + i % 10, 5), {}, i});
  const TokenStore store(folder.path() + "/s", write(folder.path() + "/s", 2, documents), {});
  EXPECT_EQ(store.longer_than(10).count, 0u);
  EXPECT_EQ(store.longer_than(9).count, 1000u);
  EXPECT_EQ(store.longer_than(9).first, 9u);
  EXPECT_EQ(store.longer_than(0).count, 10'000u);
}

TEST(TokenStore, RefusesAFileOfTheWrongSize) {
  TempFolder folder;
  const TokenStoreFacts facts = write(folder.path() + "/s", 2, {{{1, 2, 3}, {}, 1}});
  std::filesystem::resize_file(folder.path() + "/s/ids.bin", 5);
  EXPECT_TRUE(
      contains(error_of([&] { TokenStore(folder.path() + "/s", facts, {}); }), "has 5 bytes, its manifest says 6"));
}

TEST(TokenStore, NamesTheFileWhoseBytesHaveChanged) {
  TempFolder folder;
  const std::string path = folder.path() + "/s";
  const TokenStoreFacts facts = write(path, 2, {{{1, 2, 3}, {-100, 2, 3}, 1}});
  TokenStore(path, facts, {}).verify();
  for (const std::string name : {"ids.bin", "labels.bin", "documents.bin"}) {
    const std::string before = read_file(path + "/" + name);
    std::string after = before;
    after.back() ^= 64;
    write_file_atomic(path + "/" + name, after);
    EXPECT_TRUE(contains(error_of([&] { TokenStore(path, facts, {}).verify(); }), name + ": its bytes have changed"));
    write_file_atomic(path + "/" + name, before);
  }
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(TokenStore, KeepsTheColumnsOfDocuments) {
  TempFolder folder;
  const std::string path = folder.path() + "/s";
  const std::vector<Document> documents = {{{1}, {}, 1},
                                           {{2}, {}, 2, {{"image", bytes_of("abc")}}},
                                           {{3}, {}, 3, {{"image", bytes_of("d")}, {"sound", bytes_of("efgh")}}},
                                           {{4}, {}, 4}};
  const TokenStoreFacts facts = write(path, 2, documents);
  const TokenStore store(path, token_store_facts_from_json(to_json(facts), "manifest"), {});
  EXPECT_FALSE(store.columns().empty());
  for (uint64_t i = 0; i < documents.size(); ++i) {
    EXPECT_EQ(store.document(i).index, i);
    EXPECT_EQ(store.columns().read(i), documents[i].columns) << i;
  }
  store.verify();
  std::vector<Document> others = documents;
  others[1].columns["image"] = bytes_of("abd");
  EXPECT_NE(write(folder.path() + "/others", 2, others).content_hash, facts.content_hash);
  write_file_atomic(path + "/column-1.bin", "efgi");
  EXPECT_TRUE(
      contains(error_of([&] { TokenStore(path, facts, {}).verify(); }), "column-1.bin: its bytes have changed"));
  std::filesystem::resize_file(path + "/column-0.bin", 3);
  EXPECT_TRUE(
      contains(error_of([&] { TokenStore(path, facts, {}); }), "column-0.bin: has 3 bytes, its manifest says 4"));
}

TEST(TokenStore, FactsSurviveJson) {
  TokenStoreFacts facts;
  facts.id_bytes = 2;
  facts.num_documents = 3;
  facts.num_tokens = uint64_t{1} << 50;
  facts.content_hash = "ab";
  facts.max_id = 5;
  facts.checksums["ids.bin"] = 0xFFFFFFFF;
  facts.notes.unused_columns["url"] = 7;
  facts.notes.num_blank_lines = 4;
  const TokenStoreFacts back = token_store_facts_from_json(to_json(facts), "manifest");
  EXPECT_EQ(to_json(back), to_json(facts));
  EXPECT_EQ(back.notes.num_blank_lines, 4u);
  Json broken = to_json(facts);
  broken["id_bytes"] = 3;
  EXPECT_TRUE(contains(error_of([&] { token_store_facts_from_json(broken, "m.json"); }), "m.json: \"id_bytes\" is 3"));
  broken = to_json(facts);
  broken["unused_columns"]["url"] = "7";
  EXPECT_TRUE(contains(error_of([&] { token_store_facts_from_json(broken, "m.json"); }), "m.json: "));
  broken = to_json(facts);
  broken["max_id"] = -1;
  EXPECT_TRUE(contains(error_of([&] { token_store_facts_from_json(broken, "m.json"); }), "\"max_id\" is -1"));
}

}  // namespace
}  // namespace chassis
