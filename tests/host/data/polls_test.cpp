// Loops of data preparation that may take long call `poll`, by which the first Ctrl-C ends them. Polls are counted
// instead of timed: between two of them lies an amount of work that takes far less than a second.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "host/data/best_fit.hpp"
#include "host/data/packing.hpp"
#include "host/data/store_key.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

using Poll = std::function<void()>;

template <class T>
std::string raw_bytes(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

void read_one_row(const std::string& path, const DataSetConfig& set, const Poll& poll) {
  const auto rows = open_rows(path, set);
  rows->set_poll(poll);
  RawRow row;
  rows->next(row);
}

TokenStore store_of(const TempFolder& folder, size_t num_documents, size_t length) {
  TokenStoreWriter writer(folder.path(), 4);
  for (size_t i = 0; i < num_documents; ++i) writer.add({std::vector<int32_t>(length, 1), {}, i + 1}, 0);
  return TokenStore(folder.path(), writer.finish(), {"corpus.jsonl"});
}

struct Loop {
  const char* name;
  int num_polls;  // at least
  std::function<void(const TempFolder& folder, const Poll& poll)> run;
};
void PrintTo(const Loop& loop, std::ostream* out) { *out << loop.name; }

void read_one_field(const TempFolder& folder, const Poll& poll) {
  const std::string path = folder.write("a.csv", "text\n\"" + std::string(8 << 20, 'x') + "\"\n");
  read_one_row(path, text_set(path), poll);
}

void read_one_element(const TempFolder& folder, const Poll& poll) {
  const std::string path = folder.write("a.json", "[{\"text\":\"" + std::string(8 << 20, 'x') + "\"}]");
  read_one_row(path, text_set(path), poll);
}

void read_a_paragraph(const TempFolder& folder, const Poll& poll) {
  const std::string path = folder.write("a.txt", std::string(8 << 20, 'x'));
  read_one_row(path, text_set(path, DocumentSplit::kParagraph), poll);
}

// An index of sequences without ids, in one document.
void check_an_index(const TempFolder& folder, const Poll& poll) {
  const uint64_t num_sequences = 300'000;
  folder.write("a.idx", std::string("MMIDIDX\0\0", 9) + raw_bytes(std::vector<uint64_t>{1}) + '\x08' +
                            raw_bytes(std::vector<uint64_t>{num_sequences, 2}) + std::string(num_sequences * 12, '\0') +
                            raw_bytes(std::vector<uint64_t>{0, num_sequences}));
  const std::string path = folder.write("a.bin", "");
  read_one_row(path, token_set(path), poll);
}

void read_a_shard(const TempFolder& folder, const Poll& poll) {
  std::vector<int32_t> header(256);
  const int32_t num_ids = 1 << 20;
  header[0] = 20240520, header[1] = 1, header[2] = num_ids;
  const std::string path = folder.write("a.bin", raw_bytes(header) + raw_bytes(std::vector<uint16_t>(num_ids, 7)));
  read_one_row(path, token_set(path), poll);
}

void pack(const TempFolder& folder, const Poll& poll) {
  RowOptions options;
  options.packing = Packing::kBestFit;
  options.seq_len = 8;
  BestFitRows(store_of(folder, 4 * kPackingWindow, 3), options, poll);
}

void find_long_documents(const TempFolder& folder, const Poll& poll) {
  store_of(folder, 5 * 4096, 3).longer_than(2, poll);
}

void compare_checksums(const TempFolder& folder, const Poll& poll) {
  store_of(folder, 1, size_t{4} << 20).verify(poll);
}

void look_at_files(const TempFolder& folder, const Poll& poll) {
  std::vector<std::string> files;
  for (int i = 0; i < 8; ++i) files.push_back(folder.write("a" + std::to_string(i) + ".txt", "x"));
  store_key(text_set(folder.path()), files, nullptr, "", poll);
}

class LongLoop : public testing::TestWithParam<Loop> {};

TEST_P(LongLoop, PollsOftenAndEndsWhenThePollThrows) {
  const Loop& loop = GetParam();
  int num_polls = 0;
  {
    const TempFolder folder;
    loop.run(folder, [&] { ++num_polls; });
  }
  EXPECT_GE(num_polls, loop.num_polls);
  const TempFolder folder;
  const int last = num_polls / 2 + 1;
  num_polls = 0;
  const std::string text = error_of([&] {
    loop.run(folder, [&] {
      if (++num_polls >= last) throw Error(ExitCode::kStopped, "enough");
    });
  });
  EXPECT_TRUE(contains(text, "enough"));
  EXPECT_EQ(num_polls, last) << "it went on";
}

INSTANTIATE_TEST_SUITE_P(
    Data, LongLoop,
    testing::Values(Loop{"ReadsAFieldOfCsv", 8, read_one_field}, Loop{"ReadsAnElementOfJson", 8, read_one_element},
                    Loop{"ReadsAParagraph", 8, read_a_paragraph}, Loop{"ChecksAnIndexOfMegatron", 4, check_an_index},
                    Loop{"ReadsAShardOfIds", 8, read_a_shard}, Loop{"PacksBestFit", 4, pack},
                    Loop{"FindsLongDocuments", 5, find_long_documents}, Loop{"ComparesChecksums", 4, compare_checksums},
                    Loop{"LooksAtFiles", 8, look_at_files}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace chassis
