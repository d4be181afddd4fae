// Values of a reference in a file: what is written is read, and nothing else is ever used.
#include "host/data/reference_store.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

using Records = std::vector<ReferenceRecord>;

const Json kKey = {{"ids", "a"}, {"model", {{"compute", "f32"}}}};
const Json kOrder = {{"ranks", 1}};

// Blocks out of the order of documents, with and without tokens.
Records first_block() { return {{2, {{-1.5, {-1.0f, -0.5f}}, {-3.25, {-3.25f}}}}, {0, {{-0.1, {}}, {-0.2, {}}}}}; }
Records second_block() { return {{1, {{-1e-300, {0.0f}}, {-7, {-3, -4}}}}}; }

struct ReferenceFile : testing::Test {
  TempFolder folder;
  std::string path = folder.path() + "/set.reference-1";

  void write() {
    ReferenceWriter writer(path, kKey, kOrder);
    writer.add(first_block());
    writer.add(second_block());
    writer.finish();
  }
  std::string bytes() const { return read_file(path); }
  void put(const std::string& bytes) const { std::ofstream(path, std::ios::binary) << bytes; }
  std::string refusal(const Json& key = kKey, uint64_t num_documents = 3) const {
    return error_of([&] { ReferenceStore(path, key, num_documents); });
  }
};

TEST_F(ReferenceFile, GivesTheSequencesOfADocument) {
  write();
  const ReferenceStore store(path, kKey, 4);
  EXPECT_EQ(store.num_documents(), 3u);
  for (const Records& block : {first_block(), second_block()})
    for (const ReferenceRecord& record : block)
      EXPECT_EQ(store.read(record.document, record.sequences.size()), record.sequences);
  EXPECT_TRUE(
      contains(error_of([&] { store.read(0, 3); }), "document 0 has 3 sequences, and the file has values of 2"));
  EXPECT_TRUE(
      contains(error_of([&] { store.read(3, 2); }), "document 3 has 2 sequences, and the file has values of 0"));
  EXPECT_FALSE(std::filesystem::exists(path + ".unfinished"));
}

TEST_F(ReferenceFile, RecordsAreNumbersThatRanksCanAdd) {
  const Records records = first_block();
  const std::vector<double> numbers = to_numbers(records);
  EXPECT_EQ(records_from_numbers(numbers), records);
  EXPECT_TRUE(records_from_numbers({}).empty());
}

TEST_F(ReferenceFile, OfAnotherKeyIsRefusedWithBothHashes) {
  write();
  const Json other = {{"ids", "a"}, {"model", {{"compute", "bf16"}}}};
  const std::string text = refusal(other);
  EXPECT_TRUE(contains(text, reference_hash(kKey)));
  EXPECT_TRUE(contains(text, "not " + reference_hash(other)));
  EXPECT_TRUE(contains(text, "compute changed from f32 to bf16"));
  EXPECT_EQ(key_of_reference(path), kKey);
}

TEST_F(ReferenceFile, IsRefusedAtEveryLength) {
  write();
  const std::string whole = bytes();
  for (size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    EXPECT_FALSE(refusal().empty()) << length;
  }
  put(whole + "x");
  EXPECT_TRUE(contains(refusal(), "1 bytes after its end"));
}

TEST_F(ReferenceFile, IsRefusedIfAnyByteChanged) {
  write();
  const std::string whole = bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    put(changed);
    EXPECT_FALSE(refusal().empty()) << i;
  }
}

TEST_F(ReferenceFile, OfMoreDocumentsThanTheSetIsRefused) {
  write();
  EXPECT_TRUE(contains(refusal(kKey, 2), "it has document 2, and the set has 2"));
  ReferenceWriter writer(path, kKey, kOrder);
  writer.add(second_block());
  writer.add(second_block());
  writer.finish();
  EXPECT_TRUE(contains(refusal(), "document 1 twice"));
}

TEST_F(ReferenceFile, IsContinuedAfterItsLastWholeBlock) {
  { ReferenceWriter(path, kKey, kOrder).add(first_block()); }
  const std::string unfinished = path + ".unfinished";
  EXPECT_TRUE(contains(error_of([&] {
                         std::filesystem::copy_file(unfinished, path);
                         ReferenceStore(path, kKey, 3);
                       }),
                       "it ends after 2 documents"));
  {  // a second block that was interrupted
    ReferenceWriter writer(path, kKey, kOrder);
    EXPECT_EQ(writer.num_blocks(), 1u);
    EXPECT_EQ(writer.why_not_continued(), "");
    writer.add(second_block());
  }
  std::filesystem::resize_file(unfinished, std::filesystem::file_size(unfinished) - 1);
  {
    ReferenceWriter writer(path, kKey, kOrder);
    EXPECT_EQ(writer.num_blocks(), 1u);
    EXPECT_TRUE(contains(writer.why_not_continued(), "within a block"));
    writer.add(second_block());
    writer.finish();
  }
  const std::string continued = bytes();
  std::filesystem::remove(path);
  write();
  EXPECT_EQ(continued, bytes());
}

TEST_F(ReferenceFile, OfAnotherOrderBeginsAgain) {
  { ReferenceWriter(path, kKey, kOrder).add(first_block()); }
  ReferenceWriter writer(path, kKey, {{"ranks", 2}});
  EXPECT_EQ(writer.num_blocks(), 0u);
  EXPECT_TRUE(contains(writer.why_not_continued(), "ranks changed from 1 to 2"));
}

TEST_F(ReferenceFile, CanForgetBlocks) {
  ReferenceWriter writer(path, kKey, kOrder);
  writer.add(second_block());
  writer.add(first_block());
  writer.keep(0);
  writer.add(first_block());
  writer.add(second_block());
  writer.finish();
  EXPECT_EQ(ReferenceStore(path, kKey, 3).num_documents(), 3u);
}

TEST_F(ReferenceFile, TwoWritersDoNotMix) {
  ReferenceWriter first(path, kKey, kOrder);
  first.add(first_block());
  ReferenceWriter second(path, kKey, kOrder);
  EXPECT_FALSE(first.is_elsewhere());
  EXPECT_TRUE(second.is_elsewhere());
  EXPECT_EQ(second.inode(), first.inode());
  second.add(second_block());
  second.finish();
  EXPECT_EQ(ReferenceStore(path, kKey, 3).num_documents(), 1u);
  first.add(second_block());
  first.finish();
  EXPECT_EQ(ReferenceStore(path, kKey, 3).num_documents(), 3u);
}

TEST_F(ReferenceFile, TheNewestAreKept) {
  std::vector<std::string> paths;
  for (int i = 0; i < 4; ++i) {
    paths.push_back(folder.write("set.reference-" + std::to_string(i), "x"));
    std::filesystem::last_write_time(paths.back(),
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(i));
  }
  folder.write("other.reference-0", "x");
  remove_old_references(folder.path() + "/set.reference-", 3);
  EXPECT_EQ(kept_references(folder.path() + "/set.reference-"),
            (std::vector<std::string>{paths[0], paths[1], paths[2]}));
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/other.reference-0"));
}

TEST_F(ReferenceFile, ThatIsBeingWrittenIsNotRemoved) {
  const std::string prefix = folder.path() + "/set.reference-";
  auto shared = std::make_unique<ReferenceWriter>(path, kKey, kOrder);
  auto own = std::make_unique<ReferenceWriter>(path, kKey, kOrder);
  ASSERT_TRUE(own->is_elsewhere());
  EXPECT_EQ(kept_references(prefix).size(), 2u);
  remove_old_references(prefix, 0);
  EXPECT_EQ(kept_references(prefix).size(), 2u);
  own->add(first_block());
  own->finish();
  remove_old_references(prefix, 0);
  EXPECT_TRUE(std::filesystem::exists(path));
  own.reset();
  shared.reset();
  remove_old_references(prefix, 0);
  EXPECT_TRUE(kept_references(prefix).empty());
}

TEST_F(ReferenceFile, UnfinishedOnesDoNotDisplaceFinishedOnes) {
  write();
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  folder.write("set.reference-2.unfinished", "x");
  remove_old_references(folder.path() + "/set.reference-", 1);
  EXPECT_EQ(kept_references(folder.path() + "/set.reference-").size(), 2u);
}

TEST_F(ReferenceFile, WhoseUnfinishedOneIsGoneIsFinished) {
  ReferenceWriter writer(path, kKey, kOrder);
  writer.add(first_block());
  writer.add(second_block());
  std::filesystem::remove(path + ".unfinished");
  folder.write("set.reference-1.unfinished", "of another process");
  writer.finish();
  EXPECT_EQ(ReferenceStore(path, kKey, 3).num_documents(), 3u);
  EXPECT_EQ(read_file(path + ".unfinished"), "of another process");
}

TEST_F(ReferenceFile, OfAnotherProcessIsTakenIfTheUnfinishedOneIsGone) {
  ReferenceWriter writer(path, kKey, kOrder);
  writer.add(first_block());
  std::filesystem::remove(path + ".unfinished");
  write();
  const std::string whole = bytes();
  writer.finish();
  EXPECT_EQ(bytes(), whole);
}

TEST_F(ReferenceFile, IsNoDirectory) {
  for (const char* suffix : {"", ".unfinished"}) {
    std::filesystem::create_directory(path + suffix);
    EXPECT_TRUE(contains(error_of([&] { ReferenceWriter(path, kKey, kOrder); }),
                         "cannot write '" + path + suffix + "': it is a directory"));
    std::filesystem::remove(path + suffix);
  }
}

// Values reach the sequences of batches by their document, in any order and packing.
struct ReferenceInBatches : testing::Test {
  static constexpr int kNumPairs = 12;
  TempFolder folder;
  DataConfig config;

  ReferenceInBatches() {
    std::string rows;
    for (int i = 0; i < kNumPairs; ++i) {
      const std::string n(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i));
      rows += R"({"prompt":"p","chosen":")" + n + R"(","rejected":"no )" + n + "\"}\n";
    }
    DataSetConfig set = text_set(folder.write("pairs.jsonl", rows));
    set.format = DataFormat::kPreference;
    config.train = {set};
    config.cache_dir = folder.path() + "/cache";
    config.chat = chatml_options().chat;
    config.supervised = true;
    config.seq_len = 256;
    config.packing = Packing::kBestFit;
    config.overflow = Overflow::kDrop;
    config.sequences = SequenceNeeds{};
  }

  static double value(uint64_t document, size_t sequence) {
    return -static_cast<double>(document) - 0.25 * static_cast<double>(sequence);
  }
  std::shared_ptr<const ReferenceStore> store() {
    ReferenceWriter writer(folder.path() + "/values", kKey, kOrder);
    for (uint64_t d = 0; d < kNumPairs; ++d) writer.add(Records{{d, {{value(d, 0), {}}, {value(d, 1), {}}}}});
    writer.finish();
    return std::make_shared<const ReferenceStore>(folder.path() + "/values", kKey, kNumPairs);
  }
  // The documents of the batch.
  static std::vector<uint64_t> expect_values(const Batch& batch) {
    std::vector<uint64_t> documents;
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const BatchSequence& sequence = batch.sequences[s];
      EXPECT_EQ(sequence.reference.sum, value(sequence.document, s % 2));
      if (s % 2 == 0) documents.push_back(sequence.document);
    }
    return documents;
  }
};

TEST_F(ReferenceInBatches, FollowTheirDocuments) {
  for (const Packing packing : {Packing::kBestFit, Packing::kNone})
    for (const bool shuffle : {true, false}) {
      config.packing = packing;
      config.shuffle = shuffle;
      TrainData data(config, &kTokenizer);
      data.set_reference(0, store());
      EvalData once(data.sets()[0], config);
      std::vector<uint64_t> in_pass, in_training;
      while (const auto batch = once.next(1))
        for (const BatchSequence& sequence : batch->sequences)
          if (sequence.facts.role == SequenceRole::kChosen) in_pass.push_back(sequence.document);
      for (uint64_t row = 0; row < 2 * once.num_rows(); ++row)
        for (const uint64_t document : expect_values(data.next_step(1, 1).micro_batches.front()))
          in_training.push_back(document);
      EXPECT_EQ(std::set<uint64_t>(in_pass.begin(), in_pass.end()).size(), size_t{kNumPairs});
      ASSERT_EQ(in_pass.size(), size_t{kNumPairs});
      ASSERT_EQ(in_training.size(), size_t{2 * kNumPairs});
      // The first pass of training has the rows of `once`, in the same order.
      EXPECT_TRUE(std::equal(in_pass.begin(), in_pass.end(), in_training.begin()));
    }
}

TEST_F(ReferenceInBatches, OfAnEvaluationComeWithEachPass) {
  EvalData data(config.train[0], config, &kTokenizer);
  data.set_reference(store());
  for (int pass = 0; pass < 2; ++pass) {
    size_t num_documents = 0;
    while (const auto batch = data.next(2)) num_documents += expect_values(*batch).size();
    EXPECT_EQ(num_documents, size_t{kNumPairs});
    data.rewind();
  }
  EXPECT_EQ(data.read_once().next(1)->sequences.front().document, data.next(1)->sequences.front().document);
}

}  // namespace
}  // namespace chassis
