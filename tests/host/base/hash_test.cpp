#include "host/base/hash.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "host/base/file.hpp"

namespace chassis {
namespace {

TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  const std::string text(1000, 'x');
  for (size_t cut = 0; cut < 200; ++cut) {
    Sha256 sha;
    sha.update(text.substr(0, cut));
    sha.update(text.substr(cut));
    ASSERT_EQ(sha.hex(), sha256_hex(text)) << cut;
  }
}

TEST(Sha256, InstructionsAndPortableCodeAgree) {
  for (size_t size = 0; size < 400; size += 7) {
    const std::string text(size, static_cast<char>(size));
    Sha256 portable(true);
    portable.update(text);
    ASSERT_EQ(portable.hex(), sha256_hex(text)) << size;
  }
}

TEST(Sha256, OfAFileEqualsThatOfItsBytes) {
  const std::string path = testing::TempDir() + "/chassis_sha256_test";
  write_file_atomic(path, std::string(3000000, 'q'));
  EXPECT_EQ(sha256_file(path), sha256_hex(std::string(3000000, 'q')));
  std::filesystem::remove(path);
}

TEST(Crc32c, MatchesThePublishedVectors) {
  EXPECT_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c_portable(0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc32c(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, "", 0), 0u);
  EXPECT_EQ(crc_update(Crc::k32c, 0, "123456789", 9), 0xe3069283u);
  EXPECT_EQ(crc_update(Crc::k32, 0, "123456789", 9), 0xcbf43926u);
}

TEST(Crc32c, InstructionAndTableAgreeAndContinue) {
  std::string bytes;
  for (int i = 0; i < 777; ++i) bytes += static_cast<char>(i * 31 + i / 7);
  const uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  EXPECT_EQ(whole, crc32c_portable(0, bytes.data(), bytes.size()));
  for (size_t cut = 0; cut < bytes.size(); cut += 13) {
    const uint32_t a = crc32c(0, bytes.data(), cut);
    const uint32_t b = crc32c(0, bytes.data() + cut, bytes.size() - cut);
    ASSERT_EQ(crc32c(a, bytes.data() + cut, bytes.size() - cut), whole);
    ASSERT_EQ(crc32c_combine(a, b, bytes.size() - cut), whole) << cut;
    ASSERT_EQ(crc_combine(Crc::k32, crc_update(Crc::k32, 0, bytes.data(), cut),
                          crc_update(Crc::k32, 0, bytes.data() + cut, bytes.size() - cut), bytes.size() - cut),
              crc_update(Crc::k32, 0, bytes.data(), bytes.size()))
        << cut;
  }
}

// Long inputs are read three stretches of 8 KiB at a time.
TEST(Crc32c, InstructionAndTableAgreeOnBytesOfEveryLength) {
  std::string bytes(100'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i / 7);
  for (const size_t size : {8'191ul, 24'575ul, 24'576ul, 24'577ul, 24'584ul, 49'151ul, 49'152ul, 73'729ul, 99'999ul})
    EXPECT_EQ(crc32c(7, bytes.data() + 1, size), crc32c_portable(7, bytes.data() + 1, size)) << size;
}

TEST(Crc32c, OfALongFileIsCombinedFromItsParts) {
  std::string bytes(3'000'001, '\0');
  for (size_t i = 0; i < bytes.size(); i += 997) bytes[i] = static_cast<char>(i);
  for (const size_t cut : {0ul, 1ul, 65'536ul, 1'500'000ul, bytes.size()}) {
    const uint32_t a = crc32c(0, bytes.data(), cut), b = crc32c(0, bytes.data() + cut, bytes.size() - cut);
    EXPECT_EQ(crc32c_combine(a, b, bytes.size() - cut), crc32c(0, bytes.data(), bytes.size()));
  }
  EXPECT_EQ(crc_shift(Crc::k32c, crc_shift(Crc::k32c, 1, 12'345'678'901), 98'765'432'109),
            crc_shift(Crc::k32c, 1, 111'111'111'010));
}

TEST(Hash64, MatchesThePublishedVectors) {
  EXPECT_EQ(hash64("", 0), 0xef46db3751d8e999u);
  EXPECT_EQ(hash64("a", 0), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash64("abc", 0), 0x44bc2cf5ad770999u);
  EXPECT_EQ(hash64("Nobody inspects the spammish repetition", 0), 0xfbcea83c8a378bf1u);
  EXPECT_NE(hash64("abc", 1), hash64("abc", 0));
}

}  // namespace
}  // namespace chassis
