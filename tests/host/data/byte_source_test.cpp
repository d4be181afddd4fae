#include "host/data/byte_source.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

using Texts = std::vector<std::string>;

// 3 MB that hardly compress, in lines.
std::string noise() {
  std::string text;
  uint32_t state = 1;
  while (text.size() < 3'000'000) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>(state >> 24 > 250 ? '\n' : ' ' + (state >> 16) % 95);
  }
  return text;
}

std::string all_bytes(const std::string& path, size_t piece) {
  const auto source = open_bytes(path);
  std::string text, buffer(piece, '\0');
  while (const size_t count = source->read(buffer.data(), buffer.size())) text.append(buffer, 0, count);
  EXPECT_EQ(source->num_bytes_read(0), File::open_read(path).size());
  return text;
}

TEST(ByteSource, UnpacksGzipAndZstdInPiecesOfAnySize) {
  TempFolder folder;
  const std::string text = noise();
  for (const auto& [name, packed] :
       {std::pair<std::string, std::string>{"a.txt", text}, {"a.txt.gz", gzip(text)}, {"a.txt.zst", zstd(text)}}) {
    const std::string path = folder.write(name, packed);
    for (const size_t piece : {size_t{977}, size_t{1} << 20, size_t{8} << 20})
      EXPECT_EQ(all_bytes(path, piece) == text, true) << name << " " << piece;
  }
}

TEST(ByteSource, JoinsMembersAndFrames) {
  TempFolder folder;
  EXPECT_EQ(row_texts(folder.write("a.txt.gz", gzip("one\ntw") + gzip("") + gzip("o\n") + std::string(512, '\0'))),
            (Texts{"one", "two"}));
  EXPECT_EQ(row_texts(folder.write("a.txt.zst", zstd("one\ntw") + zstd("") + zstd("o\n"))), (Texts{"one", "two"}));
}

TEST(ByteSource, RefusesArchivesThatAreCutOff) {
  TempFolder folder;
  const std::string text = noise();
  for (const auto& [name, packed] :
       {std::pair<std::string, std::string>{"a.txt.gz", gzip(text)}, {"a.txt.zst", zstd(text)}}) {
    for (const size_t size : {packed.size() - 1, packed.size() - 5, packed.size() / 2, size_t{12}, size_t{3}}) {
      const std::string path = folder.write(name, packed.substr(0, size));
      const std::string message = error_of([&] { all_bytes(path, 1 << 16); });
      EXPECT_TRUE(contains(message, name + ": the archive is truncated: it ends after " + std::to_string(size)));
    }
    const std::string twice = packed + packed.substr(0, 100);
    EXPECT_TRUE(contains(error_of([&] { all_bytes(folder.write(name, twice), 1 << 16); }), "truncated"));
  }
}

TEST(ByteSource, RefusesArchivesThatAreDamaged) {
  TempFolder folder;
  std::string gz = gzip(noise()), zst = zstd(noise());
  gz[gz.size() - 6] ^= 1;  // in the checksum
  zst[10] ^= 0x55;
  for (const auto& [name, packed] : {std::pair<std::string, std::string>{"sum.txt.gz", gz},
                                     {"b.txt.zst", zst},
                                     {"c.txt.gz", "one\ntwo\n"},
                                     {"d.txt.zst", "one\ntwo\n"},
                                     {"e.txt.gz", gzip("one") + "rubbish"},
                                     {"f.txt.gz", gzip("one") + std::string(4, '\0') + gzip("two")},
                                     {"g.txt.zst", zstd("one") + "rubbish"}}) {
    const std::string path = folder.write(name, packed);
    const std::string message = error_of([&] { all_bytes(path, 1 << 16); });
    EXPECT_TRUE(contains(message, name + ": the archive is damaged at byte "));
    EXPECT_TRUE(contains(message, " of " + std::to_string(packed.size())));
  }
  for (const char* name : {"a.txt.gz", "a.txt.zst"})
    EXPECT_TRUE(contains(error_of([&] { all_bytes(folder.write(name, ""), 100); }), "the file is empty"));
}

TEST(ByteSource, RefusesACompressedFileWithoutItsName) {
  TempFolder folder;
  EXPECT_TRUE(contains(error_of([&] { row_texts(folder.write("a.txt", gzip("one"))); }), "rename it to"));
  EXPECT_TRUE(contains(error_of([&] { row_texts(folder.write("b.jsonl", zstd("one"))); }), "b.jsonl.zst"));
}

}  // namespace
}  // namespace chassis
