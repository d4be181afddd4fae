// Finds and parses the directory of a ZIP file, and checks each member against its local header.
#include "zip.hpp"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace zero_import {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kMaxDirectoryBytes = uint64_t{64} << 20;
constexpr uint32_t kInExtraField = UINT32_MAX;  // the number is in an extra field of 64 bits

constexpr auto kCrcOfByte = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; ++bit) table[byte] = table[byte] >> 1 ^ ((table[byte] & 1) != 0 ? 0xedb88320u : 0);
  }
  return table;
}();

struct Directory {
  uint64_t offset = 0, num_bytes = 0, num_members = 0;
  uint64_t end = 0;  // where the records after it begin
};

Directory find_directory(const Source& source, uint32_t file) {
  const uint64_t num_bytes = source.files[file].num_bytes;
  if (num_bytes < kEndBytes)
    throw Defect("the file has " + std::to_string(num_bytes) + " bytes, too few for a ZIP file");
  Directory found;
  found.end = num_bytes - kEndBytes;
  const std::string end = source.text(file, found.end, kEndBytes);
  if (number_at<uint32_t>(end, 0) != kEnd || number_at<uint16_t>(end, 20) != 0) {
    throw Defect("there is no ZIP directory at the end: the file is cut short, or was saved by a PyTorch before 1.6");
  }
  found.num_members = number_at<uint16_t>(end, 10);
  found.num_bytes = number_at<uint32_t>(end, 12);
  found.offset = number_at<uint32_t>(end, 16);
  if (found.end < kLocatorBytes) return found;
  const std::string locator = source.text(file, found.end - kLocatorBytes, kLocatorBytes);
  if (number_at<uint32_t>(locator, 0) != kLocator64) return found;
  const uint64_t end64 = number_at<uint64_t>(locator, 8);
  if (found.end < kLocatorBytes + kEnd64Bytes || end64 != found.end - kLocatorBytes - kEnd64Bytes)
    throw Defect("the ZIP64 end record should be at byte " + std::to_string(end64) +
                 ", which is not directly before its locator");
  const std::string wide = source.text(file, end64, kEnd64Bytes);
  if (number_at<uint32_t>(wide, 0) != kEnd64) throw Defect("the ZIP64 end record is damaged");
  found.num_members = number_at<uint64_t>(wide, 32);
  found.num_bytes = number_at<uint64_t>(wide, 40);
  found.offset = number_at<uint64_t>(wide, 48);
  found.end = end64;
  return found;
}

void check_name(std::string_view name) {
  const bool leaves_folder = name.empty() || name.front() == '/' || name.find("//") != name.npos ||
                             ("/" + std::string(name) + "/").find("/../") != std::string::npos;
  const bool is_odd = std::any_of(name.begin(), name.end(), [](char c) { return c == '\\' || c == ':' || c < 0x20; });
  if (leaves_folder || is_odd) throw Defect("a member is called " + shown(name) + ", which is not a plain name");
}

// Reads the 64-bit numbers of the extra field, in the order in which the entry refers to them.
void read_wide_numbers(std::string_view extra, std::array<uint64_t*, 3> wide, const std::string& name) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const auto id = number_at<uint16_t>(extra, at), size = number_at<uint16_t>(extra, at + 2);
    at += 4;
    if (size > extra.size() - at) break;
    if (id == 1) {
      size_t from = 0;
      for (uint64_t* number : wide) {
        if (*number != kInExtraField) continue;
        if (from + 8 > size) throw Defect("member " + shown(name) + " lacks its ZIP64 sizes");
        *number = number_at<uint64_t>(extra, at + from);
        from += 8;
      }
      return;
    }
    at += size;
  }
  if (std::any_of(wide.begin(), wide.end(), [](const uint64_t* number) { return *number == kInExtraField; }))
    throw Defect("member " + shown(name) + " lacks its ZIP64 sizes");
}

struct Entry {
  ZipMember member;
  uint64_t local = 0;  // where its local header begins
};

// Reads the entry at `at` and moves `at` past it.
Entry read_entry(std::string_view directory, size_t& at) {
  if (directory.size() - at < kEntryBytes || number_at<uint32_t>(directory, at) != kEntry)
    throw Defect("the ZIP directory is damaged at its byte " + std::to_string(at));
  const std::string_view fixed = directory.substr(at, kEntryBytes);
  const auto flags = number_at<uint16_t>(fixed, 8), method = number_at<uint16_t>(fixed, 10);
  const uint64_t name_bytes = number_at<uint16_t>(fixed, 28), extra_bytes = number_at<uint16_t>(fixed, 30),
                 comment_bytes = number_at<uint16_t>(fixed, 32);
  if (name_bytes + extra_bytes + comment_bytes > directory.size() - at - kEntryBytes)
    throw Defect("the ZIP directory is cut short at its byte " + std::to_string(at));
  Entry entry;
  entry.member.name = directory.substr(at + kEntryBytes, name_bytes);
  check_name(entry.member.name);
  if ((flags & 1) != 0) throw Defect("member " + shown(entry.member.name) + " is encrypted");
  if (method != 0) throw Defect("member " + shown(entry.member.name) + " is compressed; only stored ones are read");
  entry.member.crc32 = number_at<uint32_t>(fixed, 16);
  uint64_t packed = number_at<uint32_t>(fixed, 20);
  entry.member.num_bytes = number_at<uint32_t>(fixed, 24);
  entry.local = number_at<uint32_t>(fixed, 42);
  read_wide_numbers(directory.substr(at + kEntryBytes + name_bytes, extra_bytes),
                    {&entry.member.num_bytes, &packed, &entry.local}, entry.member.name);
  if (packed != entry.member.num_bytes) throw Defect("member " + shown(entry.member.name) + " has two different sizes");
  at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
  return entry;
}

// Takes the offset of the bytes from the local header; everything else comes from the directory.
void locate(const Source& source, uint32_t file, uint64_t limit, Entry& entry) {
  const std::string what = "member " + shown(entry.member.name);
  const uint64_t least = kLocalBytes + entry.member.name.size();
  if (entry.local > limit || limit - entry.local < least) throw Defect(what + " begins outside the file");
  const std::string header = source.text(file, entry.local, least);
  if (number_at<uint32_t>(header, 0) != kLocal || number_at<uint16_t>(header, 26) != entry.member.name.size() ||
      header.compare(kLocalBytes, header.npos, entry.member.name) != 0)
    throw Defect(what + " is not where the ZIP directory says");
  entry.member.offset = entry.local + least + number_at<uint16_t>(header, 28);
  if (entry.member.offset > limit || entry.member.num_bytes > limit - entry.member.offset)
    throw Defect(what + " claims " + std::to_string(entry.member.num_bytes) + " bytes at byte " +
                 std::to_string(entry.member.offset) + ", past the end of the file's data");
}

void refuse_overlaps(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.local < b.local; });
  for (size_t i = 1; i < entries.size(); ++i) {
    const ZipMember &before = entries[i - 1].member, &member = entries[i].member;
    if (entries[i].local < before.offset + before.num_bytes)
      throw Defect("members " + shown(before.name) + " and " + shown(member.name) + " overlap");
  }
}

}  // namespace

std::vector<ZipMember> zip_members(const Source& source, uint32_t file) {
  const Directory directory = find_directory(source, file);
  if (directory.offset > directory.end || directory.num_bytes != directory.end - directory.offset)
    throw Defect("the ZIP directory should have " + std::to_string(directory.num_bytes) + " bytes at byte " +
                 std::to_string(directory.offset) + ", but it ends at byte " + std::to_string(directory.end));
  if (directory.num_bytes > kMaxDirectoryBytes)
    throw Defect("the ZIP directory has " + std::to_string(directory.num_bytes) + " bytes, at most " +
                 std::to_string(kMaxDirectoryBytes) + " are read");
  const std::string bytes = source.text(file, directory.offset, directory.num_bytes);
  std::vector<Entry> entries;
  std::unordered_set<std::string> names;
  for (size_t at = 0; at < bytes.size();) {
    Entry& entry = entries.emplace_back(read_entry(bytes, at));
    if (!names.insert(entry.member.name).second) throw Defect("member " + shown(entry.member.name) + " appears twice");
    locate(source, file, directory.offset, entry);
  }
  if (entries.size() != directory.num_members)
    throw Defect("the ZIP directory has " + std::to_string(entries.size()) + " members, its end says " +
                 std::to_string(directory.num_members));
  refuse_overlaps(entries);
  std::vector<ZipMember> members;
  for (Entry& entry : entries) members.push_back(std::move(entry.member));
  return members;
}

uint32_t crc32(std::string_view bytes) {
  uint32_t crc = UINT32_MAX;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcOfByte[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

}  // namespace zero_import
