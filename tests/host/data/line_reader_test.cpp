#include "host/data/line_reader.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/host/data/support.hpp"

namespace chassis {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  LineReader reader(open_bytes(path));
  std::vector<std::string> lines;
  for (std::string_view line; reader.next(line);) lines.emplace_back(line);
  EXPECT_EQ(reader.num_bytes_read(), File::open_read(path).size());
  return lines;
}

TEST(LineReader, GivesEveryLineWithoutItsEnd) {
  TempFolder folder;
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of(folder.write("a", "one\n\ntwo\r\nthree")), (Lines{"one", "", "two", "three"}));
  EXPECT_EQ(lines_of(folder.write("b", "one\n")), (Lines{"one"}));
  EXPECT_EQ(lines_of(folder.write("c", "")), (Lines{}));
  EXPECT_EQ(lines_of(folder.write("d", "\xEF\xBB\xBFone")), (Lines{"one"}));
}

TEST(LineReader, JoinsLinesThatCrossBlocks) {
  TempFolder folder;
  std::vector<std::string> lines;
  std::string text;
  for (size_t i = 0; i < 50; ++i) {
    lines.push_back(std::string(i * 7919 % 300'000, static_cast<char>('a' + i % 26)));
    text += lines.back() + "\n";
  }
  lines.push_back(std::string(3'000'000, 'z'));
  text += lines.back();
  EXPECT_EQ(lines_of(folder.write("a", text)), lines);
}

TEST(LineReader, NamesTheByteThatIsNotUtf8) {
  TempFolder folder;
  const std::string path = folder.write("latin.txt", "fine\ncaf\xE9 au lait\n");
  const std::string message = error_of([&] { lines_of(path); });
  EXPECT_TRUE(contains(message, "latin.txt:2:4"));
  EXPECT_TRUE(contains(message, "0xE9"));
  EXPECT_TRUE(contains(message, "iconv"));
  // An incomplete character after complete ones of every length.
  EXPECT_TRUE(
      contains(error_of([&] { lines_of(folder.write("cut", "a\u00e9\u20ac\U0001F600\xE2\x82")); }), "cut:1:11"));
}

TEST(LineReader, NamesOtherEncodingsByTheirFirstBytes) {
  TempFolder folder;
  using namespace std::string_literals;
  EXPECT_TRUE(contains(error_of([&] { lines_of(folder.write("a", "\xFF\xFEh\0"s)); }), "iconv -f utf-16"));
  EXPECT_TRUE(contains(error_of([&] { lines_of(folder.write("b", "x\n\xFF\xFEh\0"s)); }), "iconv -f latin1"));
}

TEST(LineReader, RefusesALineThatWouldNotFitInMemory) {
  TempFolder folder;
  const std::string path = folder.write("long.txt", "short\n" + std::string(kMaxDocumentBytes + 1, 'x') + "\n");
  const std::string message = error_of([&] { lines_of(path); });
  EXPECT_TRUE(contains(message, "long.txt:2"));
  EXPECT_TRUE(contains(message, "has 67108865 bytes, but a document may have at most 67108864 bytes"));
}

}  // namespace
}  // namespace chassis
