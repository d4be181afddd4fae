// ZIP files as torch writes them are listed; ambiguous ones are refused.
#include "plugins/format/zero_import/zip.hpp"

#include <gtest/gtest.h>

#include "plugins/format/zero_import/torch_file.hpp"
#include "torch_writer.hpp"

namespace zero_import {
namespace {

using namespace testing;

std::string defect_of(const std::string& bytes) {
  const Files files = {{"f.pt", bytes}};
  try {
    zip_members(source_of(files), 0);
  } catch (const Defect& defect) {
    return defect.what();
  }
  return "nothing was wrong";
}
void refuses(const std::string& bytes, const char* part) {
  const std::string text = defect_of(bytes);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

const std::vector<Stored> kTwo = {{"archive/one", "first"}, {"archive/two", "second!"}};
constexpr size_t kEnd = 22;
// The offset of the directory's entry `i` of kTwo; both entries have the same length.
size_t entry(const std::string& zip, size_t i) { return zip.size() - kEnd - 2 * (46 + 11) + i * (46 + 11); }
std::string changed(std::string bytes, size_t at, const std::string& to) { return bytes.replace(at, to.size(), to); }

TEST(Zip, ListsStoredMembers) {
  const Files files = {{"f.pt", zip_of(kTwo)}};
  const Source source = source_of(files);
  const auto members = zip_members(source, 0);
  ASSERT_EQ(members.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(members[i].name, kTwo[i].name);
    EXPECT_EQ(source.text(0, members[i].offset, members[i].num_bytes), kTwo[i].bytes);
    EXPECT_EQ(members[i].crc32, crc32(kTwo[i].bytes));
  }
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(defect_of(zip_of({})), "nothing was wrong");
}

TEST(Zip, RefusesIncompleteFiles) {
  const std::string zip = zip_of(kTwo);
  refuses("", "too few for a ZIP file");
  for (const size_t num_bytes : {zip.size() - 1, zip.size() / 2, size_t{30}})
    refuses(zip.substr(0, num_bytes), "cut short");
  refuses(zip + "x", "cut short");
  refuses("x" + zip, "but it ends at byte");
  refuses(changed(zip, zip.size() - kEnd + 8, little<uint16_t>(2) + little<uint16_t>(3)),
          "has 2 members, its end says 3");
  refuses(changed(zip, zip.size() - kEnd + 12, little<uint32_t>(60)), "should have 60 bytes");
  refuses(changed(zip, zip.size() - kEnd + 16, little<uint32_t>(UINT32_MAX)), "the ZIP directory should have");
  refuses(changed(zip, entry(zip, 1), "XX"), "damaged at its byte 57");
}

TEST(Zip, RefusesInconsistentMembers) {
  const std::string zip = zip_of(kTwo);
  refuses(changed(zip, entry(zip, 0) + 8, little<uint16_t>(1)), "is encrypted");
  refuses(changed(zip, entry(zip, 0) + 10, little<uint16_t>(8)), "is compressed");
  refuses(changed(zip, entry(zip, 0) + 20, little<uint32_t>(4)), "has two different sizes");
  refuses(changed(zip, entry(zip, 1) + 20, little<uint32_t>(700) + little<uint32_t>(700)),
          "past the end of the file's data");
  refuses(changed(zip, entry(zip, 0) + 20, little<uint32_t>(70) + little<uint32_t>(70)), "overlap");
  refuses(changed(zip, entry(zip, 1) + 42, little<uint32_t>(0)), "is not where the ZIP directory says");
  refuses(changed(zip, entry(zip, 1) + 42, little<uint32_t>(90000)), "begins outside the file");
  refuses(changed(zip, entry(zip, 1) + 20, little<uint32_t>(UINT32_MAX) + little<uint32_t>(UINT32_MAX)),
          "lacks its ZIP64 sizes");
  refuses(changed(zip, entry(zip, 1) + 28, little<uint16_t>(60000)), "cut short at its byte 57");
}

TEST(Zip, RefusesUnsafeNames) {
  for (const char* name : {"../x", "archive/../../etc/passwd", "/etc/passwd", "a//b", "a\\b", "c:x", "", "a/.."})
    refuses(zip_of({{name, "x"}}), "which is not a plain name");
  refuses(zip_of({{std::string("a\0b", 3), "x"}}), "which is not a plain name");
  refuses(zip_of({{"a", "x"}, {"a", "y"}}), "appears twice");
}

std::string file_defect(const std::string& bytes) {
  const Files files = {{"f.pt", bytes}};
  try {
    TorchFile file(source_of(files), 0);
    if (file.root().kind == Kind::kTensor) file.offset_of(file.pickle().tensor(file.root()));
  } catch (const Defect& defect) {
    return defect.what();
  }
  return "nothing was wrong";
}

TEST(TorchFile, NamesItsFileInEveryDefect) {
  TorchWriter torch;
  const std::string tensor = torch.tensor({2}, {1, 2});
  EXPECT_EQ(file_defect(torch.file(tensor)), "nothing was wrong");
  EXPECT_EQ(file_defect(zip_of({{"archive/x", ""}})),
            "f.pt: there is no data.pkl in it: it was not made by torch.save");
  EXPECT_EQ(file_defect(zip_of({{"a/data.pkl", ""}, {"b/data.pkl", ""}})), "f.pt: there are two pickles in it");
  EXPECT_EQ(file_defect(zip_of({{"a/data.pkl", pickle_of("N")}, {"a/byteorder", "big"}})),
            "f.pt: its numbers are big-endian");
  EXPECT_EQ(file_defect(zip_of({{"a/data.pkl", pickle_of(tensor)}})), "f.pt: the storage '0' is missing");
  EXPECT_EQ(file_defect(zip_of({{"a/data.pkl", pickle_of(tensor)}, {"a/data/0", "1234567"}})),
            "f.pt: the storage '0' has 7 bytes, the pickle says 8");
  std::string damaged = torch.file(tensor);
  damaged[damaged.find("FloatStorage")] = 'D';
  EXPECT_EQ(file_defect(damaged), "f.pt: the pickle is damaged: its CRC-32 is not that of the ZIP directory");
}

}  // namespace
}  // namespace zero_import
