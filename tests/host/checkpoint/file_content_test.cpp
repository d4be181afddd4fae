// The checksum of a file, combined from those of its parts, equals that of its bytes. Invalid fills and ranges are
// refused.
#include "host/checkpoint/file_content.hpp"

#include "fixture.hpp"

namespace chassis {
namespace {

using namespace testing;

uint32_t crc(Crc which, const std::string& bytes) { return crc_update(which, 0, bytes.data(), bytes.size()); }
void add_tensor(FileContent& file, uint64_t offset, const std::string& bytes) {
  file.add_tensor(offset, bytes.size(), crc(Crc::k32c, bytes), crc(Crc::k32, bytes));
}

TEST(FileContent, HasTheChecksumOfItsBytes) {
  std::string bytes = "head" + std::string(4, '\0') + "tensor" + std::string(3, '\0') + "another" + "between" +
                      "third" + "trailer" + std::string(2, '\0');
  FileContent file("f", bytes.size(), "head", Crc::k32);
  add_tensor(file, 8, "tensor");
  add_tensor(file, 17, "another");
  add_tensor(file, 31, "third");
  file.fill(36, "trailer");
  file.fill(24, "between");
  EXPECT_EQ(file.crc32c(), crc(Crc::k32c, bytes));
  EXPECT_EQ(file.checksum(0, bytes.size()), crc(Crc::k32, bytes));
  for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{
           {8, 14}, {4, 17}, {14, 17}, {15, 16}, {17, 36}, {36, 45}, {43, 44}, {20, 20}})
    EXPECT_EQ(file.checksum(begin, end - begin), crc(Crc::k32, bytes.substr(begin, end - begin))) << begin;
  EXPECT_EQ(file.fills(), (std::map<uint64_t, std::string>{{24, "between"}, {36, "trailer"}}));
}

TEST(FileContent, RefusesBytesThatTheFormatMayNotFill) {
  FileContent file("f", 20, "head", Crc::k32);
  add_tensor(file, 8, "tensor");
  const auto fill = [&](uint64_t offset, const std::string& bytes) {
    return error_of([&] { file.fill(offset, bytes); });
  };
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, std::string>>{
           {0, "x"}, {3, "xx"}, {7, "xx"}, {9, "x"}, {13, "xx"}, {5, "0123456789"}})
    EXPECT_NE(fill(offset, bytes).find("overlap the header, a tensor"), std::string::npos) << fill(offset, bytes);
  EXPECT_NE(fill(18, "xxx").find("extend past its end"), std::string::npos);
  EXPECT_NE(fill(UINT64_MAX, "x").find("extend past its end"), std::string::npos);
  EXPECT_EQ(fill(14, "xxx"), "no error");
  EXPECT_NE(fill(16, "x").find("bytes that were filled before"), std::string::npos);
  const auto sum = [&](uint64_t offset, uint64_t num_bytes) {
    return error_of([&] { file.checksum(offset, num_bytes); });
  };
  EXPECT_NE(sum(9, 4).find("cuts the part that begins at byte 8"), std::string::npos) << sum(9, 4);
  EXPECT_NE(sum(4, 6).find("cuts the part that begins at byte 8"), std::string::npos) << sum(4, 6);
  EXPECT_NE(sum(2, 10).find("cuts the part that begins at byte 0"), std::string::npos) << sum(2, 10);
  EXPECT_NE(sum(0, 21).find("not 21"), std::string::npos);
  EXPECT_EQ(sum(8, 6), "no error");
}

}  // namespace
}  // namespace chassis
