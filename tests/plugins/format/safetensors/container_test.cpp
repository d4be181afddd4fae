// Valid headers are read; invalid ones are refused with a reason.
#include <gtest/gtest.h>
#include <malloc.h>

#include <random>

#include "chassis/tensor.h"
#include "memory_source.hpp"

namespace safetensors {
namespace {

std::string refusal(std::string json, uint64_t data_bytes) {
  return defect_of([&] { Header::parse(std::move(json), data_bytes); });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Header, ReadsTensorsAndMetadata) {
  const Header header = Header::parse(
      "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\\n\\u00e9\\ud83d\\ude00\"},\"b\":{\"dtype\":\"BF16\",\"shape\":["
      "2,3],"
      "\"data_offsets\":[4,16]}, \"a\\u002fx\" : { \"shape\" : [ ] , \"data_offsets\" : [ 0 , 4 ] , \"dtype\" : "
      "\"F32\" } }   ",
      16);
  ASSERT_EQ(header.size(), 2u);
  EXPECT_EQ(header.name(0), "b");
  EXPECT_EQ(header.type(0), Type::kBf16);
  EXPECT_EQ(header.shape(0), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.begin(0), 4u);
  EXPECT_EQ(header.end(0), 16u);
  EXPECT_EQ(header.name(1), "a/x");
  EXPECT_TRUE(header.shape(1).empty());
  EXPECT_EQ(header.find("a/x"), 1u);
  EXPECT_EQ(header.find("c"), 2u);
  EXPECT_EQ(header.metadata_value("format"), "pt");
  EXPECT_EQ(header.metadata_value("k"), "v\n\u00e9\U0001F600");
  EXPECT_EQ(header.metadata().size(), 2u);
}

TEST(Header, ReadsEmptyFilesScalarsAndZeroSizes) {
  EXPECT_EQ(Header::parse("{}", 0).size(), 0u);
  const std::string zeros = "{" + entry("z", "F32", "[0,7]", "[4,4]") + "," + entry("s", "F32", "[]", "[0,4]") + "," +
                            entry("y", "I64", "[0]", "[0,0]") + "}";
  EXPECT_EQ(Header::parse(zeros, 4).size(), 3u);
}

TEST(Header, KnowsEveryDtypeOfTheReference) {
  for (const char* name : {"BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                           "I16",  "U16", "F16", "BF16",    "I32",     "U32",     "F32",         "C64",
                           "F64",  "I64", "U64", "F4",      "F6_E2M3", "F6_E3M2"}) {
    const std::string text = std::string("{") + entry("t", name, "[0]", "[0,0]") + "}";
    EXPECT_EQ(type_name(Header::parse(text, 0).type(0)), name);
  }
  EXPECT_EQ(Header::parse("{" + entry("t", "F4", "[4]", "[0,2]") + "}", 2).size(), 1u);
  EXPECT_EQ(refusal("{" + entry("t", "F4", "[3]", "[0,2]") + "}", 2), "tensor 't' does not end at a byte boundary");
}

TEST(Header, RefusesMalformedHeadersWithAReason) {
  const std::string good = entry("t", "F32", "[1]", "[0,4]");
  EXPECT_EQ(refusal("", 0), "the header does not begin with '{'");
  EXPECT_EQ(refusal(" {}", 0), "the header does not begin with '{'");
  EXPECT_EQ(refusal("[]", 0), "the header does not begin with '{'");
  EXPECT_EQ(refusal("{} x", 0), "JSON byte 3: text after the last '}'");
  EXPECT_EQ(refusal(std::string("{}\0", 3), 0), "JSON byte 2: text after the last '}'");
  EXPECT_NE(refusal("{" + good, 4).find("expected '}'"), std::string::npos);
  EXPECT_NE(refusal("{" + good + ",}", 4).find("expected a string"), std::string::npos);
  EXPECT_EQ(refusal("{" + good + "," + good + "}", 4), "tensor 't' appears twice");
  EXPECT_EQ(refusal("{" + good + "," + entry("\\u0074", "F32", "[1]", "[4,8]") + "}", 8), "tensor 't' appears twice");
  EXPECT_EQ(refusal("{\"t\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
            "tensor 't' has the key 'dtype' twice");
  EXPECT_EQ(refusal("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "tensor 't' lacks data_offsets");
  EXPECT_EQ(refusal("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4),
            "tensor 't' has the unknown key 'x'");
  EXPECT_EQ(refusal("{" + entry("t", "F31", "[1]", "[0,4]") + "}", 4), "tensor 't' has the unknown dtype 'F31'");
  EXPECT_EQ(refusal("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "duplicate key '__metadata__'");
  EXPECT_EQ(refusal("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), "__metadata__ has the key 'a' twice");
  EXPECT_NE(refusal("{\"__metadata__\":{\"a\":1}}", 0).find("strings only"), std::string::npos);
  EXPECT_NE(refusal("{\"__metadata__\":null}", 0).find("expected '{'"), std::string::npos);
}

TEST(Header, RefusesOffsetsThatDoNotTile) {
  const auto two = [](const char* a, const char* b) {
    return "{" + entry("a", "U8", "[4]", a) + "," + entry("b", "U8", "[4]", b) + "}";
  };
  EXPECT_EQ(Header::parse(two("[4,8]", "[0,4]"), 8).size(), 2u);
  EXPECT_EQ(refusal(two("[0,4]", "[2,6]"), 6), "tensor 'b' starts at byte 2, inside the one before it (expected 4)");
  EXPECT_EQ(refusal(two("[0,4]", "[0,4]"), 4), "tensor 'b' starts at byte 0, inside the one before it (expected 4)");
  EXPECT_EQ(refusal(two("[0,4]", "[5,9]"), 9), "tensor 'b' starts at byte 5, after a gap (expected 4)");
  EXPECT_EQ(refusal(two("[1,5]", "[5,9]"), 9), "tensor 'a' starts at byte 1, after a gap (expected 0)");
  EXPECT_EQ(refusal(two("[0,4]", "[4,8]"), 9),
            "the tensors take 8 bytes, the file has 9 after the header: there are trailing bytes");
  EXPECT_EQ(refusal(two("[0,4]", "[4,8]"), 7),
            "the tensors take 8 bytes, the file has 7 after the header: it is cut short");
  EXPECT_EQ(refusal("{" + entry("a", "U8", "[4]", "[0,5]") + "}", 5),
            "tensor 'a' has data_offsets [0, 5], but its shape and dtype take 4 bytes");
  EXPECT_NE(refusal("{" + entry("a", "U8", "[4]", "[4,0]") + "}", 4).find("data_offsets [4, 0]"), std::string::npos);
}

TEST(Header, RefusesNumbersThatAreNotSmallIntegers) {
  for (const char* number : {"-1", "-0", "1.0", "1e0", "1E2", "01", "0x1", "18446744073709551616", "\"1\"", "null",
                             "true", "[1]", "+1", ".5", "1."}) {
    EXPECT_NE(refusal("{" + entry("a", "U8", std::string("[") + number + "]", "[0,1]") + "}", 1), "nothing was wrong")
        << number;
    EXPECT_NE(refusal("{" + entry("a", "U8", "[1]", std::string("[0,") + number + "]") + "}", 1), "nothing was wrong")
        << number;
  }
  EXPECT_EQ(refusal("{" + entry("a", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0),
            "tensor 'a': its shape overflows");
  EXPECT_EQ(refusal("{" + entry("a", "U8", "[9223372036854775808]", "[0,0]") + "}", 0),
            "tensor 'a': its shape overflows");
  EXPECT_EQ(refusal("{" + entry("a", "F64", "[4611686018427387904]", "[0,0]") + "}", 0),
            "tensor 'a': its size overflows");
  // 2^61 * 64 bits wraps to 0.
  EXPECT_EQ(refusal("{" + entry("a", "F64", "[288230376151711744]", "[0,0]") + "}", 0),
            "tensor 'a': its size overflows");
  std::string dims = "[1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  EXPECT_EQ(refusal("{" + entry("a", "U8", dims + "]", "[0,1]") + "}", 1), "a tensor has more than 64 dims");
}

TEST(Header, RefusesInvalidNames) {
  const auto named = [](const std::string& name) { return refusal("{" + entry(name, "U8", "[1]", "[0,1]") + "}", 1); };
  EXPECT_EQ(named(""), "a tensor has no name");
  EXPECT_EQ(named("a\\u0000b"), "the name 'a?b' has a control character");
  EXPECT_EQ(named("../../etc/passwd"), "the name '../../etc/passwd' looks like a path");
  EXPECT_EQ(named("a/../b"), "the name 'a/../b' looks like a path");
  EXPECT_EQ(named("/etc/passwd"), "the name '/etc/passwd' looks like a path");
  EXPECT_EQ(named(std::string("a\0b", 3)), "JSON byte 3: a control character in a string");
  for (const char* bad :
       {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\xf8\x88\x80\x80\x80", "\x80"}) {
    EXPECT_NE(named(bad).find("invalid UTF-8"), std::string::npos) << bad;
  }
  for (const char* bad : {"\\ud800", "\\udc00", "\\ud800\\u0041", "\\x41", "\\u12", "\\u12g4"}) {
    EXPECT_NE(named(bad), "nothing was wrong") << bad;
  }
  EXPECT_EQ(named("layer.0/weight\\u00e9"), "nothing was wrong");
}

TEST(Header, SurvivesDeepNestingWhereItIsNotAllowed) {
  const std::string deep(200'000, '[');
  EXPECT_NE(refusal("{" + entry("a", "U8", deep, "[0,1]") + "}", 1), "nothing was wrong");
  EXPECT_NE(refusal("{\"a\":" + std::string(200'000, '{'), 1), "nothing was wrong");
  std::string text = std::string(200'000, '[');
  JsonReader json(text);
  EXPECT_NE(defect_of([&] { json.skip_value(); }).find("nested deeper than 32"), std::string::npos);
}

TEST(Header, RefusesLengthsThatTheFileDoesNotHave) {
  const auto read = [](const std::string& bytes) {
    const Files files = {{"f", bytes}};
    return defect_of([&] { read_header(source_of(files), 0); });
  };
  EXPECT_EQ(read(""), "f: the file has 0 bytes, fewer than the 8 of the header's length");
  EXPECT_EQ(read("1234567"), "f: the file has 7 bytes, fewer than the 8 of the header's length");
  EXPECT_EQ(read(std::string("\0\0\0\0\0\0\0\x80{}", 10)),
            "f: the header claims 9223372036854775808 bytes, the file has 2 after its length");
  EXPECT_EQ(read(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "f: the header claims 3 bytes, the file has 2 after its length");
  EXPECT_EQ(read("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 34\n"),
            "f: it is a pointer of Git LFS, not the file that it stands for: get that with `git lfs pull`");
  EXPECT_EQ(read(file_of("{}", 0)), "nothing was wrong");
  std::string huge = file_of("{" + std::string(100'000'000, ' ') + "}", 0);
  EXPECT_EQ(read(huge), "f: the header claims 100000002 bytes, at most 100000000 are allowed");
}

// Every proper prefix of a file is refused. A flipped bit of the header is refused or gives another valid file.
TEST(Header, SurvivesTruncationAndFlips) {
  const std::string json = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("aa", "F32", "[2,3]", "[0,24]") + "," +
                           entry("bb", "BOOL", "[8]", "[24,32]") + "}";
  const std::string whole = file_of(json, 32);
  size_t refused = 0;
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const Files files = {{"f", whole.substr(0, cut)}};
    refused += defect_of([&] { read_header(source_of(files), 0); }) != "nothing was wrong";
  }
  EXPECT_EQ(refused, whole.size());
  for (size_t at = 0; at < 8 + json.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      const Files files = {{"f", bytes}};
      defect_of([&] { read_header(source_of(files), 0); });
    }
  }
}

TEST(Header, ReadsAMillionTensorsInFourTimesTheirBytes) {
  std::string json = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    if (i > 0) json += ',';
    json += entry(std::to_string(i), "U8", "[0]", "[0,0]");
  }
  json += '}';
  json.shrink_to_fit();
  const size_t num_bytes = json.size();
  const auto live = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const size_t before = live() - json.capacity();
  const Header header = Header::parse(std::move(json), 0);
  EXPECT_EQ(header.size(), 1'000'000u);
  EXPECT_EQ(header.find("999999"), 999'999u);
  EXPECT_LT(live() - before, 4 * num_bytes);
}

TEST(Header, SurvivesRandomEdits) {
  const std::string json = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("aa", "F32", "[2,3]", "[0,24]") + "," +
                           entry("bb", "BOOL", "[8]", "[24,32]") + "}";
  std::mt19937 random(7);
  const char alphabet[] = "{}[]\",:0123456789.eE-+\\u \n\tabc";
  for (int round = 0; round < 100'000; ++round) {
    std::string text = json;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % (sizeof alphabet - 1)];
          break;
        case 1:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 12));
      }
      if (text.empty()) text = "{";
    }
    defect_of([&] { Header::parse(std::move(text), 32); });
  }
}

TEST(HeaderBytes, MatchTheReferenceWriter) {
  const std::vector<int64_t> shape = {2, 2};
  const std::vector<NewTensor> tensors = {{"a", Type::kF32, shape, 16}, {"b", Type::kU8, {}, 1}};
  const std::string bytes = header_bytes(tensors, {{"format", "pt"}});
  const std::string json =
      "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[16,17]}}";
  EXPECT_EQ(bytes.size() % 8, 0u);
  EXPECT_EQ(bytes.substr(8, json.size()), json);
  EXPECT_EQ(bytes.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) + 256u * static_cast<unsigned char>(bytes[1]), bytes.size() - 8);
  EXPECT_EQ(Header::parse(bytes.substr(8), 17).size(), 2u);
}

TEST(HeaderBytes, EscapeNamesThatParseBack) {
  const std::string name = "q\"uote\\slash\u00e9";
  const std::vector<NewTensor> tensors = {{name, Type::kU8, {}, 1}};
  EXPECT_EQ(Header::parse(header_bytes(tensors, {{"k", "a\n\x01"}}).substr(8), 1).name(0), name);
}

}  // namespace
}  // namespace safetensors
